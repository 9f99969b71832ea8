
-- Wait in the queue, at the end of one's rank when new there, until ``stay_ms`` of silence.
local function stay(queue, alive, attempt, now_ms, stay_ms, rank)
  if not redis.call('ZSCORE', queue, attempt) then
    -- Behind the last one whatever the clock says, which may have stepped back.
    local behind, next_rank = rank * 4e15, (rank + 1) * 4e15
    local last = redis.call('ZREVRANGEBYSCORE', queue, next_rank, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    redis.call('ZADD', queue, math.max(tonumber(last or '0') + 1, now_ms * 1000 + behind), attempt)
  end
  redis.call('ZADD', alive, now_ms + stay_ms, attempt)
  -- Once nobody waits any more, nothing is left.
  redis.call('PEXPIRE', queue, stay_ms * 2)
  redis.call('PEXPIRE', alive, stay_ms * 2)
end
