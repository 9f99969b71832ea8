-- look_share: who holds shares, and how many wait.
-- KEYS   shares {ns:kind:name}:l, queue {ns:kind:name}:q, ends {ns:kind:name}:e
-- ARGV
-- needs: now, listed
-- resend: harmless, it changes nothing
-- ->     SHARES waiters, (owner fence since_ms left_ms weight attempt)…
local shares, queue, ends = KEYS[1], KEYS[2], KEYS[3]

return {'SHARES', redis.call('ZCARD', queue), listed(shares, ends, now(), '', -1)}
