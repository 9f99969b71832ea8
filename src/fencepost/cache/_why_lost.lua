-- Why a lease is not a loader's any more: somebody stopped it (see stop), another one has it, or it
-- ran out and nobody came.
local function why_lost(token, taken, marks)
  local stopped = redis.call('HGET', marks, 'stopped') or ''
  if stopped:find(token, 1, true) then return 'invalidated' end
  return taken and 'successor' or 'expired'
end
