
-- Take out the shares whose leases have ended: nothing else ends one that its holder left.
local function reap(shares, ends, now_ms)
  -- One key without the other tells nothing: what is lost is lost together.
  if redis.call('EXISTS', shares, ends) < 2 then redis.call('DEL', shares, ends) end
  for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now_ms)) do
    take_out(shares, ends, attempt)
  end
end
