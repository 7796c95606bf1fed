-- Shows packetrig's test tag (docs/book/tag.md) at the end of the payload. A post-dissector without the run's key: it
-- trusts the check of the full form, and shows the short form only when told to.

local tag = Proto("packetrig", "packetrig test tag")
local fields = {
    form = ProtoField.string("packetrig.form", "Form"),
    mark = ProtoField.uint16("packetrig.mark", "Mark", base.HEX),
    stream = ProtoField.uint16("packetrig.stream", "Stream"),
    sequence = ProtoField.uint32("packetrig.sequence", "Sequence"),
    time = ProtoField.uint64("packetrig.time", "Send time (ns, modulo 2^48)"),
    check = ProtoField.uint16("packetrig.check", "Payload check", base.HEX),
}
tag.fields = { fields.form, fields.mark, fields.stream, fields.sequence, fields.time, fields.check }
tag.prefs.enable = Pref.bool("Show test tags", false, "Look for a tag at the end of every frame")
tag.prefs.short = Pref.bool("Show short tags", false, "Take the last 6 bytes for a short tag where there is no full one")
tag.prefs.fcs = Pref.bool("Frames carry an FCS", true, "Captures of a run do, those of `packetrig capture` do not; the tag stands in front of it")

-- One's-complement sum of big-endian words.
local function sum(tvb, from, to)
    local total = 0
    for at = from, to - 1, 2 do
        local word = tvb(at, 1):uint() * 256
        if at + 1 < to then word = word + tvb(at + 1, 1):uint() end
        total = total + word
    end
    while total > 0xffff do total = total % 0x10000 + math.floor(total / 0x10000) end
    return total
end

-- Where the payload may start: behind the headers that carry tags in practice. The first start whose sum agrees wins.
local STARTS = { 42, 54, 62, 34, 46, 58, 66, 38, 50, 70, 74, 14, 18, 22 }

local function full_fits(tvb, stop)
    local check = tvb(stop - 2, 2):uint()
    for _, start in ipairs(STARTS) do
        if start <= stop - 16 and 0xffff - sum(tvb, start, stop - 16) == check then return true end
    end
    return false
end

function tag.dissector(tvb, pinfo, tree)
    if not tag.prefs.enable then return end
    local stop = tvb:len()
    if tag.prefs.fcs then stop = stop - 4 end
    if stop >= 16 and full_fits(tvb, stop) then
        local at = tvb(stop - 16, 16)
        local branch = tree:add(tag, at)
        branch:add(fields.form, "full")
        branch:add(fields.mark, at(0, 2))
        branch:add(fields.stream, at(2, 2))
        branch:add(fields.sequence, at(4, 4))
        branch:add(fields.time, at(8, 6):uint64())
        branch:add(fields.check, at(14, 2))
    elseif tag.prefs.short and stop >= 6 then
        local at = tvb(stop - 6, 6)
        local branch = tree:add(tag, at)
        branch:add(fields.form, "short")
        branch:add(fields.mark, at(0, 2))
        branch:add(fields.stream, at(2, 2), at(2, 2):bitfield(0, 12))
        branch:add(fields.sequence, at(3, 3), at(3, 3):bitfield(4, 20))
    end
end

register_postdissector(tag)
