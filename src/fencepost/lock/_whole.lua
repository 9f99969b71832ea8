
-- Asked before any change: an error in the middle of a script does not undo what came before it.
local function whole(ttl_ms)
  return #ttl_ms <= 15 and ttl_ms:match('^[1-9]%d*$') ~= nil
end
