
-- Stop the load that is under way, and every write-through: what they read or saved may be older
-- than what comes now. Which lease it was is remembered, so that its owner learns why.
local function stop(lease, marks, intents, revision, remember_ms)
  local owner = redis.call('GET', lease)
  if owner then redis.call('HSET', marks, 'stopped', owner) end
  local floor = redis.call('HGET', marks, 'revision') or ''
  if revision > floor and revision:sub(1, 1) ~= '-' then redis.call('HSET', marks, 'revision', revision) end
  if redis.call('EXISTS', marks) == 1 then redis.call('PEXPIRE', marks, remember_ms) end
  for _, writer in ipairs(redis.call('HKEYS', intents)) do redis.call('HSET', intents, writer, 'shared') end
  redis.call('DEL', lease)
end
