-- renew_share: prolong a share that is still ours; a lost one is never made anew, and none is shortened.
-- KEYS   shares {ns:kind:name}:l, ends {ns:kind:name}:e
-- ARGV   attempt, ttl_ms
-- needs: whole, now, prolong
-- flags: allow-oom
-- resend: harmless, it is prolonged from now
-- ->     RENEWED
-- ->     LOST
local shares, ends = KEYS[1], KEYS[2]
local attempt, ttl_ms = ARGV[1], ARGV[2]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
local now_ms, end_ms = now(), tonumber(redis.call('ZSCORE', ends, attempt) or '0')
-- Over is over, though nobody has taken it out yet.
if end_ms <= now_ms or redis.call('HEXISTS', shares, attempt) == 0 then return {'LOST'} end
if end_ms < now_ms + ttl_ms then prolong(shares, ends, attempt, now_ms, ttl_ms) end
return {'RENEWED'}
