-- renew: prolong a lock that is still ours; a lost one is never made anew, and none is shortened.
-- KEYS   lock {ns:lock:name}:l
-- ARGV   attempt, ttl_ms
-- needs: whole
-- resend: harmless, it is prolonged from now
-- ->     RENEWED
-- ->     LOST
local lock = KEYS[1]
local attempt, ttl_ms = ARGV[1], ARGV[2]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
if redis.pcall('HGET', lock, 'attempt') ~= attempt then return {'LOST'} end
if redis.call('PTTL', lock) < tonumber(ttl_ms) then redis.call('PEXPIRE', lock, ttl_ms) end
return {'RENEWED'}
