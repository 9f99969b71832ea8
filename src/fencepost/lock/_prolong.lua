
-- Let a share last so long from now, and what it is kept in at least as long: up to twice as long, so
-- that its end need not be moved each time. Both keys have the same.
local function prolong(shares, ends, attempt, now_ms, ttl_ms)
  redis.call('ZADD', ends, now_ms + ttl_ms, attempt)
  if redis.call('PTTL', ends) < tonumber(ttl_ms) then
    redis.call('PEXPIRE', shares, ttl_ms * 2)
    redis.call('PEXPIRE', ends, ttl_ms * 2)
  end
end
