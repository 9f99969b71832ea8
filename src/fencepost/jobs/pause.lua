-- pause: let no job begin any more, or let them begin again; what runs goes on.
-- KEYS   head {ns:jobs:queue}:q, wake :t
-- ARGV   paused
-- needs: place
-- resend: harmless, it is paused or it is not
-- ->     PAUSED
-- ->     RESUMED
local head, wake = KEYS[1], KEYS[2]
local paused = ARGV[1]

if paused == '1' then
  redis.call('HSET', head, 'paused', '1')
  return {'PAUSED'}
end
redis.call('HDEL', head, 'paused')
call_one({wake = wake})
return {'RESUMED'}
