
-- Shares that stand, the first to end first: as many at most, of one fence or of any.
local function listed(shares, ends, now_ms, only, most)
  local found, after = {}, string.format('(%.0f', now_ms)
  local standing = redis.call('ZRANGEBYSCORE', ends, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #standing, 2 do
    local share = redis.call('HGET', shares, standing[i]) or ''
    local weight, _, fence, since_ms, owner = share:match('^(%d+) (%d+) (%d+) (%d+) (.*)$')
    if fence and (only == '' or only == fence) then
      local left_ms = tonumber(standing[i + 1]) - now_ms
      found[#found + 1] = {owner, fence, since_ms, left_ms, weight, standing[i]}
    end
  end
  return found
end
