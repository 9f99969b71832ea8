-- stamp: the stamp of a tag, made if there is none.
-- KEYS   stamp {ns:cache:name:tag:TAG}
-- ARGV   fresh, ttl_ms
-- needs: whole
-- resend: harmless, it is made once
-- ->     stamp
local stamp = KEYS[1]
local fresh, ttl_ms = ARGV[1], ARGV[2]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
local there = redis.call('GET', stamp)
if not there then
  redis.call('SET', stamp, fresh, 'PX', ttl_ms)
  return fresh
end
if redis.call('PTTL', stamp) < tonumber(ttl_ms) then redis.call('PEXPIRE', stamp, ttl_ms) end
return there
