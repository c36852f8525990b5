//! The handshake of one client: its options and their answers, until it gets an export or leaves.
//!
//! ```text
//!   flags ─► options ─ GO, EXPORT_NAME ─► an export
//!               │  ▲ └─ ABORT, malformed beyond repair, too many ─► closed
//!               └──┴─ STARTTLS: everything but the flags is forgotten
//! ```
//! If TLS is needed, nothing but STARTTLS and ABORT is answered before it.

use super::exports::{self, Export};
use super::protocol::NbdParsed;
use super::protocol::handshake::{
    self, CONTEXT_ID, CONTEXT_NAME, ClientFlags, ClientOption, INFO_BLOCK_SIZE, INFO_EXPORT, INFO_NAME,
    OPTION_EXPORT_NAME, OptionKind, OptionReply,
};
use super::protocol::request::PAYLOAD_BYTES_MAX;
use tapetum::BLOCK_BYTES;

/// The most options of one client: some clients ask several times.
const OPTIONS_MAX: u32 = 64;

/// The result of a step over the client's bytes.
pub enum Negotiated {
    /// Takes so many bytes, and discards so many that follow.
    Goes {
        taken_bytes: usize,
        skip_bytes: usize,
    },
    NeedMore(usize),
    /// The client gets this export; the handshake is over.
    Serves {
        taken_bytes: usize,
        export: Export,
    },
    /// The client has asked for TLS and was answered. Whatever follows must be TLS.
    StartsTls {
        taken_bytes: usize,
    },
    /// No more input is taken.
    Ends {
        taken_bytes: usize,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NbdTls {
    /// There is none.
    #[default]
    Absent,
    Needed,
    Begun,
}

#[derive(Default)]
pub struct Negotiation {
    pub tls: NbdTls,
    flags: Option<ClientFlags>,
    options: u32,
    pub is_structured: bool,
    /// The name of the export whose block statuses the client asked for.
    contexts_of: Option<Vec<u8>>,
}

impl Negotiation {
    pub fn new(tls: NbdTls) -> Negotiation {
        Negotiation { tls, ..Negotiation::default() }
    }

    /// Whether the client asked for block statuses of this export.
    pub fn has_statuses(&self, export: &Export, exports: &[Export]) -> bool {
        let of = self.contexts_of.as_ref().and_then(|name| exports::find(exports, name));
        self.is_structured && of.is_some_and(|of| of.name == export.name)
    }

    /// Takes the client's next message, and answers it.
    pub fn step(&mut self, input: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Negotiated {
        let Some(flags) = self.flags else {
            return match handshake::client_flags(input) {
                NbdParsed::Frame(flags, taken_bytes) => {
                    self.flags = Some(flags);
                    Negotiated::Goes { taken_bytes, skip_bytes: 0 }
                }
                NbdParsed::NeedMore(bytes) => Negotiated::NeedMore(bytes),
                NbdParsed::Broken => Negotiated::Ends { taken_bytes: 0 },
            };
        };
        let (ClientOption { code, kind }, taken_bytes) = match handshake::option(input) {
            NbdParsed::Frame(option, taken_bytes) => (option, taken_bytes),
            NbdParsed::NeedMore(bytes) => return Negotiated::NeedMore(bytes),
            NbdParsed::Broken => return Negotiated::Ends { taken_bytes: 0 },
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Negotiated::Ends { taken_bytes };
        }
        if self.tls == NbdTls::Needed {
            return self.answer_before_tls(code, &kind, taken_bytes, out);
        }
        // EXPORT_NAME has no error reply.
        if code == OPTION_EXPORT_NAME {
            let OptionKind::ExportName(name) = kind else { return Negotiated::Ends { taken_bytes } };
            let Some(export) = exports::find(exports, name) else { return Negotiated::Ends { taken_bytes } };
            handshake::push_export(out, export.size_bytes(), export.flags(self.is_structured), flags);
            return Negotiated::Serves { taken_bytes, export: export.clone() };
        }
        self.answer(ClientOption { code, kind }, taken_bytes, exports, out)
    }

    fn answer_before_tls(
        &mut self,
        code: u32,
        kind: &OptionKind<'_>,
        taken_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Negotiated {
        let mut say = |kind| handshake::push_reply(out, code, kind, &[]);
        match kind {
            OptionKind::StartTls => {
                say(OptionReply::Ack);
                // Anybody on the way may have sent what came before.
                let Negotiation { flags, options, .. } = *self;
                *self = Negotiation { tls: NbdTls::Begun, flags, options, ..Negotiation::default() };
                Negotiated::StartsTls { taken_bytes }
            }
            OptionKind::Abort => {
                say(OptionReply::Ack);
                Negotiated::Ends { taken_bytes }
            }
            OptionKind::ExportName(_) => Negotiated::Ends { taken_bytes },
            OptionKind::TooLong { skip_bytes: None } => {
                say(OptionReply::TlsRequired);
                Negotiated::Ends { taken_bytes }
            }
            kind => {
                say(OptionReply::TlsRequired);
                let skip_bytes = if let OptionKind::TooLong { skip_bytes: Some(bytes) } = kind { *bytes } else { 0 };
                Negotiated::Goes { taken_bytes, skip_bytes }
            }
        }
    }

    fn answer(
        &mut self,
        ClientOption { code, kind }: ClientOption<'_>,
        taken_bytes: usize,
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Negotiated {
        let mut say = |kind, data: &[&[u8]]| handshake::push_reply(out, code, kind, data);
        let mut skip_bytes = 0;
        match kind {
            OptionKind::Abort => {
                say(OptionReply::Ack, &[]);
                return Negotiated::Ends { taken_bytes };
            }
            OptionKind::List => {
                for Export { name, .. } in exports {
                    say(OptionReply::Server, &[&(name.len() as u32).to_be_bytes(), name.as_bytes()]);
                }
                say(OptionReply::Ack, &[]);
            }
            OptionKind::About { name, wanted, goes } => match exports::find(exports, name) {
                None => say(OptionReply::Unknown, &[]),
                Some(export) => {
                    describe(export, self.is_structured, wanted, |data| say(OptionReply::Info, data));
                    say(OptionReply::Ack, &[]);
                    if goes {
                        return Negotiated::Serves { taken_bytes, export: export.clone() };
                    }
                }
            },
            OptionKind::StructuredReply => {
                self.is_structured = true;
                say(OptionReply::Ack, &[]);
            }
            OptionKind::Contexts { name, queries, sets } => {
                if let Some(context) = self.contexts(name, &queries, sets, exports, |kind| say(kind, &[])) {
                    if context {
                        say(OptionReply::MetaContext, &[&CONTEXT_ID.to_be_bytes(), CONTEXT_NAME]);
                    }
                    say(OptionReply::Ack, &[]);
                }
            }
            // It has begun already.
            OptionKind::StartTls if self.tls == NbdTls::Begun => say(OptionReply::Invalid, &[]),
            OptionKind::Unknown | OptionKind::StartTls => say(OptionReply::Unsupported, &[]),
            OptionKind::Malformed | OptionKind::ExportName(_) => say(OptionReply::Invalid, &[]),
            OptionKind::TooLong { skip_bytes: None } => {
                say(OptionReply::TooBig, &[]);
                return Negotiated::Ends { taken_bytes };
            }
            OptionKind::TooLong { skip_bytes: Some(bytes) } => {
                say(OptionReply::TooBig, &[]);
                skip_bytes = bytes;
            }
        }
        Negotiated::Goes { taken_bytes, skip_bytes }
    }

    /// Whether the context is among those that the client asks for. `None` if the option was refused.
    fn contexts(
        &mut self,
        name: &[u8],
        queries: &[&[u8]],
        sets: bool,
        exports: &[Export],
        refuse: impl FnOnce(OptionReply),
    ) -> Option<bool> {
        if sets {
            // An earlier choice is void, even if this option fails.
            self.contexts_of = None;
        }
        if !self.is_structured {
            refuse(OptionReply::Invalid);
            return None;
        }
        if exports::find(exports, name).is_none() {
            refuse(OptionReply::Unknown);
            return None;
        }
        let is_asked = |query: &&[u8]| *query == CONTEXT_NAME || !sets && *query == b"base:";
        let found = queries.iter().any(is_asked) || !sets && queries.is_empty();
        if sets && found {
            self.contexts_of = Some(name.to_vec());
        }
        Some(found)
    }
}

/// Gives the size of an export, and the other information that the client wants.
fn describe(export: &Export, is_structured: bool, wanted: &[u8], mut say: impl FnMut(&[&[u8]])) {
    let is_wanted = |kind: u16| wanted.chunks_exact(2).any(|word| word == kind.to_be_bytes());
    let (size_bytes, flags) = (export.size_bytes(), export.flags(is_structured));
    say(&[&INFO_EXPORT.to_be_bytes(), &size_bytes.to_be_bytes(), &flags.to_be_bytes()]);
    if is_wanted(INFO_NAME) {
        say(&[&INFO_NAME.to_be_bytes(), export.name.as_bytes()]);
    }
    if is_wanted(INFO_BLOCK_SIZE) {
        let sizes = [1, BLOCK_BYTES as u32, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        say(&[&INFO_BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
    }
}
