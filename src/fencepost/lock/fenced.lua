-- fenced: run a script of the caller's, unless a newer holder of its lock has run one.
-- KEYS   gate {key}:fence, key…
-- ARGV   fence, token, remember_ms, argument…
-- needs: refused
-- ->     whatever the script answers
-- ->     FENCED fence    an error: of who has run one since
local gate = KEYS[1]
local fence, token, remember_ms = ARGV[1], ARGV[2], ARGV[3]

local newer = refused(gate, fence, token, remember_ms)
if newer then return redis.error_reply('FENCED ' .. newer) end
local keys, arguments = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 4, #ARGV do arguments[i - 3] = ARGV[i] end
return (function(KEYS, ARGV)
--BODY--
end)(keys, arguments)
