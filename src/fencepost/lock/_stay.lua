
-- Wait in the queue, at its end when new there, until ``stay_ms`` of silence.
local function stay(queue, alive, attempt, now_ms, stay_ms)
  if not redis.call('ZSCORE', queue, attempt) then
    -- Behind the last one whatever the clock says, which may have stepped back.
    local last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', queue, math.max(tonumber(last or '0') + 1, now_ms * 1000), attempt)
  end
  redis.call('ZADD', alive, now_ms + stay_ms, attempt)
  -- Once nobody waits any more, nothing is left.
  redis.call('PEXPIRE', queue, stay_ms * 2)
  redis.call('PEXPIRE', alive, stay_ms * 2)
end
