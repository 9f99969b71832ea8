-- let_go: remember ids for a while only, now that their rows are gone.
-- KEYS   remembered {ns:jobs:queue}:o
-- ARGV   keep_ms, ids…
-- needs: clock
-- flags: allow-oom
-- resend: harmless, never longer than before
-- ->     OK
local remembered = KEYS[1]
local keep_ms = tonumber(ARGV[1])

local _, now_ms = clock()
local until_ms = digits(now_ms + keep_ms)
for i = 2, #ARGV do redis.call('ZADD', remembered, 'XX', 'LT', until_ms, 'i' .. ARGV[i]) end
return 'OK'
