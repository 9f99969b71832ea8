-- renew: prolong a lease that is still ours; a lost one is never made anew.
-- KEYS   lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m
-- ARGV   token, lease_ms
-- needs: whole, why_lost
-- resend: harmless, it is prolonged from now
-- ->     RENEWED
-- ->     LOST reason    invalidated, expired (alone) or successor
local lease, marks = KEYS[1], KEYS[2]
local token, lease_ms = ARGV[1], ARGV[2]

if not whole(lease_ms) then return redis.error_reply('ERR lease_ms is a positive whole number') end
if redis.call('GETRANGE', lease, 0, #token - 1) ~= token then
  return {'LOST', why_lost(token, redis.call('EXISTS', lease) == 1, marks)}
end
redis.call('PEXPIRE', lease, lease_ms)
return {'RENEWED'}
