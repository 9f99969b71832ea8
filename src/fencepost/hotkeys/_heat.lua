-- A key is hot from enter on, and until it falls below leave.
local function heat(sure, hot, enter, leave, now_ms, most)
  for _, name in ipairs(redis.call('HKEYS', hot)) do
    if tonumber(redis.call('ZSCORE', sure, name) or 0) < leave then redis.call('HDEL', hot, name) end
  end
  for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', sure, '+inf', enter, 'LIMIT', 0, most)) do
    redis.call('HSETNX', hot, name, now_ms)
  end
end
