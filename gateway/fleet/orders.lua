-- A site's orders, one JSON text; `revision` in it makes changes of two people one after the other.
-- KEYS: orders. ARGV: op (read | write), and for write: the revision that was seen, the new text.
-- Answers: {written (0/1), now in milliseconds, text ("" when there is none)}.

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local text = redis.call('GET', KEYS[1]) or ''

if ARGV[1] == 'read' then return { 0, now, text } end

local revision = 0
if text ~= '' then revision = cjson.decode(text).revision end
if tonumber(ARGV[2]) ~= revision then return { 0, now, text } end
redis.call('SET', KEYS[1], ARGV[3])
return { 1, now, ARGV[3] }
