
-- How often in a row who waits longest was passed, this attempt counted. Who is of a later rank may be
-- passed freely, who is of an earlier one never; those of rank 1 are in nobody's way among themselves.
local function passing(queue, head, attempt, rank, before)
  if not head or head == attempt then return 0 end
  local theirs = math.floor(tonumber(redis.call('ZSCORE', queue, head)) / 4e15)
  if theirs < rank then return math.huge end
  if theirs > rank or rank > 0 then return 0 end
  return tonumber(before or '0') + 1
end
