
-- The newest revision that is known: of the entry, of what is remembered, and the one given.
-- Revisions are digits of one width, or dashes for none. Bytes of something else are no revision.
local function newest(entry, marks, given)
  local found = given
  local stored = redis.pcall('GETRANGE', entry, 24, 42)
  local floor = redis.call('HGET', marks, 'revision')
  for _, other in ipairs({type(stored) == 'string' and stored or '', floor or ''}) do
    if #other == 19 and other:match('^%d+$') and (not found:match('^%d') or other > found) then
      found = other
    end
  end
  return found
end
