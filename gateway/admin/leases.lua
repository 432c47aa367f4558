-- Who holds what, for people to look at; writes nothing, so that looking renews and prunes nobody.
-- KEYS: lease (sorted set: epoch by expiry), then `held` of each deployment (admission.lua).
-- Answers JSON: {now, leases: [[epoch, left_ms]], held: [{account: [requests, tokens]}]}.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local alive, leases = {}, {}
local fields = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf', 'WITHSCORES')
for i = 1, #fields, 2 do
  alive[fields[i]] = true
  table.insert(leases, { fields[i], tonumber(fields[i + 1]) - now })
end
local held = {}
for i = 2, #KEYS do
  local used, records = {}, redis.call('HGETALL', KEYS[i])
  for j = 1, #records, 2 do
    if alive[records[j]] then
      for account, weight in pairs(cjson.decode(records[j + 1]).g) do
        local sum = used[account] or { 0, 0 }
        used[account] = { sum[1] + weight[1], sum[2] + weight[2] }
      end
    end
  end
  held[i - 1] = { next(used) and used or nil }
end
return cjson.encode({ leases = leases, held = held })
