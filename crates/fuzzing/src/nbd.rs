//! A client's side of a block device's protocol: its flags and options, then its requests.

use tapetum::BlockDevice;
use tapetum_server::doors::nbd::exports::Export;
use tapetum_server::doors::nbd::negotiation::{NbdTls, Negotiated, Negotiation};
use tapetum_server::doors::nbd::protocol::NbdParsed;
use tapetum_server::doors::nbd::protocol::request::NbdRequest;

const SIZE_BYTES: u64 = 1 << 20;
/// No option asks for more bytes than the longest one that is parsed, with its head.
const NEED_BYTES_MAX: usize = 16 + 8192;

/// A whole conversation: the handshake until there is an export or an end, and requests behind it. Taken bytes do not depend on the bytes
/// behind them.
pub fn conversation(input: &[u8]) {
    let export = |name: &str, is_read_only| {
        let (name, keyspace) = (name.to_owned(), tapetum::KeyspaceRef::DEFAULT);
        let device = BlockDevice::new(SIZE_BYTES).expect("a size of whole blocks");
        Export { name, keyspace, device, is_read_only, counts: Default::default() }
    };
    let exports = [export("a", false), export("b", true)];
    let (mut negotiation, mut at, mut out) = (Negotiation::default(), 0, Vec::new());
    let export = loop {
        let rest = input.get(at..).unwrap_or_default();
        let said_before = out.len();
        match negotiation.step(rest, &exports, &mut out) {
            Negotiated::Goes { taken_bytes, skip_bytes } => {
                assert!((1..=rest.len()).contains(&taken_bytes));
                // A list names two exports.
                assert!(out.len() - said_before <= 200, "more than an answer");
                at += taken_bytes + skip_bytes;
            }
            Negotiated::NeedMore(bytes) => {
                assert!(bytes > rest.len() && bytes <= NEED_BYTES_MAX, "{bytes} needed of {}", rest.len());
                return;
            }
            Negotiated::Serves { taken_bytes, export } => {
                at += taken_bytes;
                break export;
            }
            Negotiated::Ends { taken_bytes } => {
                assert!(taken_bytes <= rest.len());
                return;
            }
            Negotiated::StartsTls { .. } => panic!("there is none"),
        }
    };
    requests(input.get(at..).unwrap_or_default(), &export);
}

/// A client that must begin TLS: nothing of an export is said before, options before it are forgotten, and it begins once.
pub fn starting_tls(input: &[u8]) {
    let export = |name: &str| {
        let (name, keyspace) = (name.to_owned(), tapetum::KeyspaceRef::DEFAULT);
        let device = BlockDevice::new(SIZE_BYTES).expect("a size of whole blocks");
        Export { name, keyspace, device, is_read_only: false, counts: Default::default() }
    };
    let exports = [export("hidden-export")];
    let mut negotiation = Negotiation::new(NbdTls::Needed);
    let (mut at, mut out) = (0, Vec::new());
    loop {
        let rest = input.get(at..).unwrap_or_default();
        match negotiation.step(rest, &exports, &mut out) {
            Negotiated::Goes { taken_bytes, skip_bytes } => at += taken_bytes + skip_bytes,
            Negotiated::StartsTls { taken_bytes } => {
                assert_eq!(negotiation.tls, NbdTls::Begun);
                assert!(!negotiation.is_structured, "it is forgotten");
                assert!(!out.windows(13).any(|words| words == b"hidden-export"), "told before TLS");
                at += taken_bytes;
                break;
            }
            Negotiated::Serves { .. } => panic!("served before TLS"),
            Negotiated::NeedMore(_) | Negotiated::Ends { .. } => {
                assert!(!out.windows(13).any(|words| words == b"hidden-export"), "told before TLS");
                return;
            }
        }
    }
    loop {
        let rest = input.get(at..).unwrap_or_default();
        match negotiation.step(rest, &exports, &mut out) {
            Negotiated::Goes { taken_bytes, skip_bytes } => at += taken_bytes + skip_bytes,
            Negotiated::StartsTls { .. } => panic!("it begins once"),
            Negotiated::Serves { .. } | Negotiated::NeedMore(_) | Negotiated::Ends { .. } => return,
        }
    }
}

fn requests(mut input: &[u8], export: &Export) {
    while let NbdParsed::Frame(request, bytes) = NbdRequest::parse(input) {
        let refusal = request.refusal(export.size_bytes(), export.is_read_only, true);
        let end = request.offset.checked_add(request.length.into());
        if refusal == 0 && request.length > 0 && request.payload_bytes() > 0 {
            assert!(end.is_some_and(|end| end <= SIZE_BYTES) && !export.is_read_only);
        }
        let Some(rest) = input.get(bytes + request.payload_bytes() as usize..) else { return };
        input = rest;
    }
}
