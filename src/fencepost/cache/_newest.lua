
-- The newest revision that is known: of the entry, of what is remembered, and the one given.
-- Revisions are digits of one width, or dashes for none. Bytes of something else are no revision.
local function newest(entry, marks, given)
  local found = given
  local stored = redis.pcall('GETRANGE', entry, 0, 42)
  stored = type(stored) == 'string' and stored:sub(1, 2) == 'F1' and stored:sub(25) or ''
  local floor = redis.call('HGET', marks, 'revision')
  for _, other in ipairs({stored, floor or ''}) do
    if #other == 19 and other:match('^%d+$') and (not found:match('^%d') or other > found) then
      found = other
    end
  end
  return found
end
