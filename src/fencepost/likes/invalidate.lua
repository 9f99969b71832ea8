-- invalidate: forget what is cached of an item, after somebody wrote its rows past us.
-- KEYS   header {shard}:H:{item}, tokens {shard}:G:{item}
-- ARGV
-- flags: allow-oom
-- resend: harmless, there is nothing left to forget
-- ->     INVALIDATED   the journal is kept: those changes are still owed to SQL
local header, tokens = KEYS[1], KEYS[2]

-- The tokens too: a load that began before this must not write what it read.
redis.call('DEL', header, tokens)
return {'INVALIDATED'}
