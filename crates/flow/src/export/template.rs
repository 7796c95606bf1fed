//! Chooses the template of a record: by its version of IP, whether it is ICMP, and the headers around it.
//!
//! | 256 + … | shape | fields besides times, addresses and the common ones |
//! |---|---|---|
//! | +1 | IPv6 | 27, 28 instead of 8, 12 |
//! | +2 | ICMP | 32, or 139 of IPv6 in IPFIX |
//! | +4 | tagged | VLANs: 58, 243, 245 |
//! | +8 | carried | VLANs, MPLS: 70 to 72, 200, and tunnels: 351 and our own |
//! | +12 | routed | routes and NAT: 14, 16, 17, 55, 59, 62, 63, 227, 228, 281, 282; only if the options ask for it |
//!
//! Invariant: the template of a record's shape has all columns of the record, except `otherFields` and, in NetFlow 9,
//! columns without an element at IANA. Fields of other exporters are left out unless the options ask for them.

use super::options::ExportFormat;
use super::section::{self, TemplateSection};
use crate::canonical::is_icmp;
use crate::packet::TunnelKind;
use crate::record::FlowRecord;

/// Number of the first template of flow records; the others follow it.
pub const FIRST_TEMPLATE_ID: u16 = 256;

/// Properties of a record that decide its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordShape {
    v6: bool,
    icmp: bool,
    layers: TemplateLayers,
    /// True if the record has fields of other exporters.
    routed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateLayers {
    Plain,
    Tagged,
    Carried,
}

impl RecordShape {
    /// Every shape, in the order of template numbers.
    pub fn all_record_shapes() -> impl Iterator<Item = Self> {
        let layers = [TemplateLayers::Plain, TemplateLayers::Tagged, TemplateLayers::Carried].into_iter();
        let flags = [(false, false), (false, true), (true, false), (true, true)];
        let plain =
            layers.flat_map(move |layers| flags.map(|(icmp, v6)| Self { v6, icmp, layers, routed: false }));
        plain.clone().chain(plain.map(|shape| Self { routed: true, ..shape }))
    }

    /// Returns the shape of a record.
    pub fn from_record(record: &FlowRecord) -> Self {
        let key = &record.key;
        let carried = key.tunnel != TunnelKind::None
            || key.tunnel_id != 0
            || record.mpls != [0; 3]
            || record.outer_source != [0; 16]
            || record.outer_destination != [0; 16];
        let layers = match (carried, key.vlan | key.inner_vlan) {
            (true, _) => TemplateLayers::Carried,
            (false, 0) => TemplateLayers::Plain,
            (false, _) => TemplateLayers::Tagged,
        };
        let routed = record.foreign.is_some();
        Self { v6: !key.is_ipv4(), icmp: is_icmp(key.protocol) || record.icmp != 0, layers, routed }
    }

    /// Returns the shape without the fields that only other exporters know.
    #[must_use]
    pub const fn without_routes(self) -> Self {
        Self { routed: false, ..self }
    }

    /// Returns the index of the shape among all shapes.
    pub const fn index(self) -> usize {
        self.v6 as usize + 2 * self.icmp as usize + 4 * self.layers as usize + 12 * self.routed as usize
    }

    fn template_sections(
        self,
        format: ExportFormat,
        biflow: bool,
        has_history: bool,
    ) -> Vec<TemplateSection> {
        // The reverse direction comes first: some readers take its elements for elements of the forward direction. If
        // an element occurs twice, they use the last one.
        let mut sections = if biflow { vec![section::BACK] } else { Vec::new() };
        sections.push(section::TIMES);
        sections.push(if self.v6 { section::ADDRESSES_V6 } else { section::ADDRESSES_V4 });
        sections.push(section::COMMON);
        if self.icmp {
            // NetFlow 9 has one element for both versions of ICMP.
            let own = self.v6 && format == ExportFormat::Ipfix;
            sections.push(if own { section::ICMP_V6 } else { section::ICMP_V4 });
        }
        if self.layers != TemplateLayers::Plain {
            sections.push(section::TAGS);
        }
        if self.layers == TemplateLayers::Carried {
            sections.extend([section::LABELS, section::SEGMENT, section::TUNNEL, section::LOWER_TTLS]);
        }
        if self.routed {
            sections.push(section::ROUTES);
        }
        sections.push(section::OWN);
        if has_history && biflow {
            sections.push(section::HISTORY_SECTION);
        }
        if format == ExportFormat::NetFlow9 {
            // NetFlow 9 has 16 bits for the type of a field and no enterprise number (RFC 3954 section 5.2).
            sections.retain(|section| section.fields.iter().all(|field| field.enterprise == 0));
        }
        sections
    }
}

#[derive(Clone, Debug)]
pub struct ExportTemplate {
    pub id: u16,
    /// Bytes of a record in the fields of fixed length.
    fixed_length: usize,
    has_track: bool,
    sections: Vec<TemplateSection>,
}

impl ExportTemplate {
    /// Returns the templates of a format with these options, by [index](RecordShape::index) of shape.
    pub fn all_templates(
        format: ExportFormat,
        biflow: bool,
        has_history: bool,
        has_routes: bool,
    ) -> Vec<Self> {
        let shapes = RecordShape::all_record_shapes().filter(|shape| has_routes || !shape.routed);
        let made = (FIRST_TEMPLATE_ID..).zip(shapes).map(|(id, shape)| {
            let sections = shape.template_sections(format, biflow && format.has_biflow(), has_history);
            let fixed_length = sections.iter().map(TemplateSection::fixed_length).sum();
            Self {
                id,
                fixed_length,
                has_track: sections.iter().any(TemplateSection::has_variable_fields),
                sections,
            }
        });
        made.collect()
    }

    /// Returns the fields of the template, in order.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &section::SectionField> {
        self.sections.iter().flat_map(|section| section.fields)
    }

    /// Returns how many bytes a record takes with this template.
    pub fn record_length(&self, record: &FlowRecord) -> usize {
        self.fixed_length + if self.has_track { section::history_track_length(record) } else { 0 }
    }

    /// Appends a record, which takes as many bytes as [`Self::record_length`] says.
    pub fn encode_record(&self, record: &FlowRecord, out: &mut Vec<u8>) {
        for section in &self.sections {
            (section.write)(record, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_found_by_their_index() {
        for (index, shape) in RecordShape::all_record_shapes().enumerate() {
            assert_eq!(shape.index(), index);
        }
    }

    #[test]
    fn encoded_record_length_matches_template() {
        for (format, biflow) in
            [(ExportFormat::Ipfix, false), (ExportFormat::Ipfix, true), (ExportFormat::NetFlow9, true)]
        {
            for template in ExportTemplate::all_templates(format, biflow, biflow, true) {
                let mut bytes = Vec::new();
                template.encode_record(&FlowRecord::default(), &mut bytes);
                let said = template.record_length(&FlowRecord::default());
                assert_eq!(bytes.len(), said, "{}", template.id);
                let foreign = template.fields().any(|field| field.enterprise != 0);
                assert_eq!(foreign, format == ExportFormat::Ipfix);
            }
        }
    }
}
