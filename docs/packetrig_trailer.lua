-- Shows the trailer that `packetrig tap --trailer` puts behind copies (docs/book/tap.md). A post-dissector: the trailer is
-- whatever the last 24 bytes of the frame are, if they begin with its mark.

local trailer = Proto("packetrig_trailer", "packetrig tap trailer")
local fields = {
    direction = ProtoField.uint8("packetrig_trailer.direction", "Direction", base.DEC, { [0] = "from A", [1] = "from B" }),
    length = ProtoField.uint16("packetrig_trailer.length", "Frame length"),
    number = ProtoField.uint64("packetrig_trailer.number", "Number"),
    time = ProtoField.uint64("packetrig_trailer.time", "Arrival (ns since 1970)"),
}
trailer.fields = { fields.direction, fields.length, fields.number, fields.time }
trailer.prefs.enable = Pref.bool("Show trailers of taps", false, "Look for a trailer at the end of every frame")

local LENGTH = 24

function trailer.dissector(tvb, pinfo, tree)
    if not trailer.prefs.enable or tvb:len() < LENGTH then return end
    local at = tvb(tvb:len() - LENGTH, LENGTH)
    if at(0, 4):string() ~= "prT1" or at(4, 1):uint() > 1 or at(5, 1):uint() ~= 0 then return end
    local branch = tree:add(trailer, at)
    branch:add(fields.direction, at(4, 1))
    branch:add(fields.length, at(6, 2))
    branch:add(fields.number, at(8, 8))
    branch:add(fields.time, at(16, 8))
end

register_postdissector(trailer)
