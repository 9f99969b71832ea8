
-- Let a share last so long from now, and what it is kept in at least as long.
local function prolong(shares, ends, attempt, now_ms, ttl_ms)
  redis.call('ZADD', ends, now_ms + ttl_ms, attempt)
  for _, key in ipairs({shares, ends}) do
    if redis.call('PTTL', key) < tonumber(ttl_ms) then redis.call('PEXPIRE', key, ttl_ms) end
  end
end
