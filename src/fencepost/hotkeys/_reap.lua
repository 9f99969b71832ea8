-- Take away what processes said that have been silent since before; a few at a time.
local function reap(sure, writes, reports, alive, before)
  for _, process in ipairs(redis.call('ZRANGEBYSCORE', alive, '-inf', before, 'LIMIT', 0, 8)) do
    local report = redis.call('HGET', reports, process)
    if report then fold(sure, writes, report, '[0]') end
    redis.call('HDEL', reports, process)
    redis.call('ZREM', alive, process)
  end
end
