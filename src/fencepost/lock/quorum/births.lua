-- births: whether this server may vote, and the greatest fence that it knows.
-- KEYS   born {ns}:born
-- ARGV   max_ttl_ms, server
-- needs: newborn
-- resend: harmless, it tells what is
-- ->     OPEN high server
-- ->     NEWBORN left_ms high since server
-- ->     MISMATCH max_ttl_ms
-- ->     NAMELESS
local born = KEYS[1]
local max_ttl_ms, server = ARGV[1], ARGV[2]

local refusal, me, high = newborn(born, server, max_ttl_ms)
return refusal or {'OPEN', string.format('%.0f', high), me}
