-- publish: write what was loaded, if its lease still stands and nothing newer does; free the lease.
-- KEYS   entry {ns:cache:name:key}:v, lease {ns:cache:name:key}:l, marks {ns:cache:name:key}:m
-- ARGV   token, revision, entry, ttl_ms, remember_ms, seen
-- needs: whole, newest, why_lost, wake
-- resend: harmless, a repeated request finds its own token in the entry
-- ->     PUBLISHED
-- ->     REJECTED reason    invalidated, expired (alone), successor, or writing
-- ->     OLDER revision     the source has been seen at this newer revision
local entry, lease, marks = KEYS[1], KEYS[2], KEYS[3]
local token, revision, value, ttl_ms, remember_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local seen = ARGV[6]

if not whole(ttl_ms) then return redis.error_reply('ERR ttl_ms is a positive whole number') end
if redis.call('GETRANGE', entry, 2, 23) == token then return {'PUBLISHED'} end
local owner = redis.call('GET', lease)
local known = newest(entry, marks, revision)
local older = revision:match('^%d') and revision ~= known
local writing = owner == token .. '!'  -- it was taken beside a writer, see claim
if writing or older or owner ~= token then
  if owner and owner:sub(1, #token) == token then
    redis.call('DEL', lease)
    wake(lease)
  end
  if writing then return {'REJECTED', 'writing'} end
  if older then return {'OLDER', known} end
  return {'REJECTED', why_lost(token, owner, entry, seen, marks)}
end
redis.call('SET', entry, value, 'PX', ttl_ms)
redis.call('DEL', lease)
wake(lease)
-- What the entry itself will not remember: it has no revision, or ends before a replica has caught up.
if known:match('^%d') and (known ~= revision or tonumber(ttl_ms) < tonumber(remember_ms)) then
  redis.call('HSET', marks, 'revision', known)
  redis.call('PEXPIRE', marks, remember_ms)
end
return {'PUBLISHED'}
