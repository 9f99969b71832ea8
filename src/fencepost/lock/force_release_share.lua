-- force_release_share: take shares from whoever holds them; an operator's verb.
-- KEYS   shares {ns:kind:name}:l, queue {ns:kind:name}:q, alive {ns:kind:name}:a, ends {ns:kind:name}:e
-- ARGV   channel, fence
-- needs: first, call_next, now, counted, take_out, listed
-- flags: allow-oom
-- ->     SHARES waiters, (owner fence since_ms left_ms weight attempt)…    who held them
local shares, queue, alive, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, fence = ARGV[1], ARGV[2]

local waiters, found = redis.call('ZCARD', queue), listed(shares, ends, now(), fence, -1)
for _, share in ipairs(found) do take_out(shares, ends, share[6]) end
if #found > 0 then call_next(queue, alive, channel) end
return {'SHARES', waiters, found}
