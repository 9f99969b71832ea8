-- invalidate: forget an entry, and refuse every load that began before this.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m,
--        intents {ns:cache:name:key}:w, journal {ns:cache:name:key}:j
-- ARGV   revision, remember_ms, soft, stale_token
-- needs: newest, wake, stop
-- flags: allow-oom
-- resend: harmless, it is forgotten already
-- ->     INVALIDATED
local entry, lease, marks, intents, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local revision, remember_ms, soft, stale_token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- The newest revision that was ever seen: a lagging replica must not bring an older one back.
stop(lease, marks, intents, newest(entry, marks, revision), remember_ms)
-- What is not saved yet is newer than whatever the source has.
if redis.call('EXISTS', journal) == 1 then return {'INVALIDATED'} end
if soft == '1' and redis.pcall('GETRANGE', entry, 0, 1) == 'F1' then
  -- Kept for who may be served stale, but under another name, and not fresh for anybody.
  redis.call('SETRANGE', entry, 2, stale_token)
  redis.call('SETRANGE', entry, 43, '0000000000000')
else
  redis.call('DEL', entry)
end
return {'INVALIDATED'}
