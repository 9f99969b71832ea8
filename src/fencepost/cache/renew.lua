-- renew: prolong a lease that is still ours; a lost one is never made anew.
-- KEYS   lease {ns:cache:name:key}:l
-- ARGV   token, lease_ms
-- needs: whole
-- resend: harmless, it is prolonged from now
-- ->     RENEWED
-- ->     LOST
local lease = KEYS[1]
local token, lease_ms = ARGV[1], ARGV[2]

if not whole(lease_ms) then return redis.error_reply('ERR lease_ms is a positive whole number') end
if redis.call('GETRANGE', lease, 0, #token - 1) ~= token then return {'LOST'} end
redis.call('PEXPIRE', lease, lease_ms)
return {'RENEWED'}
