-- renew: prolong a lease that is still ours; a lost one is never made anew.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m
-- ARGV   token, lease_ms, seen
-- needs: whole, why_lost
-- resend: harmless, it is prolonged from now
-- ->     RENEWED
-- ->     LOST reason    invalidated, expired (alone) or successor
local entry, lease, marks = KEYS[1], KEYS[2], KEYS[3]
local token, lease_ms, seen = ARGV[1], ARGV[2], ARGV[3]

if not whole(lease_ms) then return redis.error_reply('ERR lease_ms is a positive whole number') end
if redis.call('GETRANGE', lease, 0, #token - 1) ~= token then
  return {'LOST', why_lost(token, redis.call('EXISTS', lease) == 1, entry, seen, marks)}
end
redis.call('PEXPIRE', lease, lease_ms)
return {'RENEWED'}
