
-- How many holders asked for which number of permits, as `permits=holders `, after one came or went.
local function counted(bounds, permits, change)
  local holders, others = change, ''
  for asked, count in bounds:gmatch('(%d+)=(%d+) ') do
    if asked == permits then
      holders = holders + tonumber(count)
    else
      others = others .. asked .. '=' .. count .. ' '
    end
  end
  return holders > 0 and others .. permits .. '=' .. string.format('%.0f', holders) .. ' ' or others
end
