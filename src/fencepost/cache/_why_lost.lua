-- Why a lease is not a loader's any more: somebody stopped it (see stop), another one has it or has
-- published since (the entry is not the one that the loader saw), or it ran out and nobody came.
local function why_lost(token, owner, entry, seen, marks)
  local stopped = redis.call('HGET', marks, 'stopped') or ''
  if stopped:find(token, 1, true) then return 'invalidated' end
  local there = redis.pcall('GETRANGE', entry, 2, 23)
  local newer = type(there) == 'string' and there ~= '' and there ~= seen
  return (owner or newer) and 'successor' or 'expired'
end
