-- A key is hot from enter on, and until it falls below leave.
local function heat(sure, hot, enter, leave, now_ms, most)
  for _, name in ipairs(redis.call('HKEYS', hot)) do
    if tonumber(redis.call('ZSCORE', sure, name) or 0) < leave then redis.call('HDEL', hot, name) end
  end
  local names = redis.call('ZREVRANGEBYSCORE', sure, '+inf', enter, 'LIMIT', 0, most)
  if #names == 0 then return end
  for i, since in ipairs(redis.call('HMGET', hot, unpack(names))) do
    if not since then redis.call('HSET', hot, names[i], now_ms) end
  end
end
