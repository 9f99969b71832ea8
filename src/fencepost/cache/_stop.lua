
-- Stop the load that is under way, and every write-through: what they read or saved may be older
-- than what comes now. The last leases that this happened to are remembered, so that their owners
-- learn why they are refused.
local function stop(lease, marks, intents, revision, remember_ms)
  local owner = redis.call('GET', lease)
  if owner then
    local others = redis.call('HGET', marks, 'stopped') or ''
    redis.call('HSET', marks, 'stopped', owner:sub(1, 22) .. ' ' .. others:sub(1, 91))
  end
  if revision:match('^%d') then redis.call('HSET', marks, 'revision', revision) end
  if redis.call('EXISTS', marks) == 1 then redis.call('PEXPIRE', marks, remember_ms) end
  for _, writer in ipairs(redis.call('HKEYS', intents)) do redis.call('HSET', intents, writer, 'shared') end
  redis.call('DEL', lease)
  if owner then wake(lease) end
end
