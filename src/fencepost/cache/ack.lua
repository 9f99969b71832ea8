-- ack: remove from the journal exactly the value that was saved, and let its entry end from now on.
-- KEYS   opening {shard}:E, entry {shard}:key:v, journal {shard}:key:j, due {shard}:Q, since {shard}:D
-- ARGV   epoch, server, key, version, claimed_ms, delay_ms
-- needs: opened, now
-- flags: allow-oom
-- resend: harmless, a second one finds it gone
-- ->     CLOSED epoch
-- ->     ACKED left    1 if a newer value came meanwhile: it is for the next flush
local opening, entry, journal, due, since = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local epoch, server, key, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local claimed_ms, delay_ms = ARGV[5], ARGV[6]

local refusal = closed(opening, epoch, server)
if refusal then return refusal end
local kept = redis.call('HMGET', journal, 'version', 'entry', 'fresh_ms', 'ttl_ms')
if kept[1] and kept[1] ~= version then
  redis.call('ZADD', due, now() + delay_ms, key)
  redis.call('ZADD', since, 'XX', claimed_ms, key)
  return {'ACKED', 1}
end
redis.call('ZREM', due, key)
redis.call('ZREM', since, key)
if not kept[1] then
  -- Lost alone, say: nothing would ever end the entry.
  if redis.pcall('GETRANGE', entry, 43, 55) == '9999999999999' then redis.call('DEL', entry) end
  return {'ACKED', 0}
end
redis.call('DEL', journal)
-- It was right when it was read for saving; what others do to the source comes after that.
local left_ms = claimed_ms + kept[4] - now()
if redis.pcall('GETRANGE', entry, 2, 23) == kept[2]:sub(3, 24) and left_ms > 0 then
  redis.call('SETRANGE', entry, 43, string.format('%013.0f', claimed_ms + kept[3]))
  redis.call('PEXPIRE', entry, string.format('%.0f', left_ms))
else
  redis.call('DEL', entry)
end
return {'ACKED', 0}
