-- A lease ended: who waits for it looks at once. A hint: it may be lost, or forbidden to this user.
local function wake(lease)
  redis.pcall('PUBLISH', lease, '*')
end
