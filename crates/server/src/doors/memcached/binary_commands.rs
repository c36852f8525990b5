//! From a parsed binary command to the store: the request it submits, and the form of its reply.

use tapetum::{Condition, Initial, Request};

use super::door::Memcached;
use super::needs;
use super::submit::general_lines;
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::protocol::binary::{self, Origin, Status};
use crate::protocol::reply::{self, BinaryAnswer, Form};
use crate::protocol::{VERSION, expiry_from_client};
use crate::stats::count;

impl Memcached {
    /// `None` if the command has to wait.
    pub(super) fn binary_command(
        &mut self,
        origin: Origin,
        command: binary::BinaryCommand<'_>,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        use binary::BinaryCommand;
        let form = |answer, quiet| Form::Binary { answer, origin, quiet };
        if self.access.is_nobody() && !is_of_login(&command) {
            // As memcached does: a client that does not log in would go on for long.
            self.refuse(origin, Status::NotAllowed, client, cx);
            client.break_off();
            return Some(());
        }
        let need = needs::of_binary(&command);
        if !self.access.allows(need) && !self.access.is_nobody() {
            self.refuse_binary(origin, need, client, cx);
            return Some(());
        }
        match command {
            BinaryCommand::Get { key, with_key, quiet } => {
                self.get(form(BinaryAnswer::Get { with_key, touch: false }, quiet), key, None, client, cx)?;
            }
            BinaryCommand::GetAndTouch { key, exptime, with_key, quiet } => {
                let touch = Some(expiry_from_client(i64::from(exptime), cx.now));
                self.get(form(BinaryAnswer::Get { with_key, touch: true }, quiet), key, touch, client, cx)?;
            }
            // The reply carries the flags, which only a get brings.
            BinaryCommand::Touch { key, exptime } => {
                let request = Request::GetAndTouch { key, expiry: expiry_from_client(i64::from(exptime), cx.now) };
                self.submit(
                    form(BinaryAnswer::Touch, false),
                    request,
                    key,
                    client.value_bytes_expected(cx.gets),
                    client,
                    cx,
                )?;
                count(&cx.counters.cmd_touch, 1);
            }
            store @ BinaryCommand::Store { .. } => self.binary_store(origin, store, client, cx)?,
            BinaryCommand::TooLarge { key, delete } => {
                self.too_large(key, delete, client, cx)?;
                self.refuse(origin, Status::TooLarge, client, cx);
            }
            BinaryCommand::Increment { key, delta, decrement, initial, stamp, quiet } => {
                let initial = initial
                    .map(|(value, exptime)| Initial { value, expiry: expiry_from_client(i64::from(exptime), cx.now) });
                let stamp = stamp_of(stamp);
                let request = Request::Increment { key, delta, decrement, initial, stamp, touch: None };
                self.submit(form(BinaryAnswer::Increment { decrement }, quiet), request, key, 0, client, cx)?;
            }
            BinaryCommand::Delete { key, stamp, quiet } => {
                let request = Request::Delete { key, stamp: stamp_of(stamp) };
                self.submit(form(BinaryAnswer::Delete, quiet), request, key, 0, client, cx)?;
            }
            BinaryCommand::Flush { .. } if !self.options.may_flush => {
                count(&cx.counters.cmd_flush, 1);
                self.refuse(origin, Status::NotAllowed, client, cx);
            }
            BinaryCommand::Flush { delay, quiet } => {
                self.flush_all(form(BinaryAnswer::Flush, quiet), i64::from(delay), client, cx)?;
                self.audit_last(b"flush_all", client);
            }
            BinaryCommand::NoOp => {
                self.answer(Form::Silent, client, cx, |out| reply::binary_success(out, origin, false, 0))
            }
            BinaryCommand::Version => self.answer(Form::Silent, client, cx, |out| {
                reply::binary_pair(out, origin, b"", VERSION.as_bytes());
            }),
            BinaryCommand::Stat { argument } => {
                self.binary_stats(origin, argument, client, cx)?;
                self.audit_answered(need, &[b"stats ", argument].concat(), client);
            }
            BinaryCommand::Quit { quiet } => {
                self.answer(Form::Silent, client, cx, |out| reply::binary_success(out, origin, quiet, 0));
                client.close();
            }
            BinaryCommand::SaslList | BinaryCommand::SaslAuth { .. } | BinaryCommand::SaslStep if !self.has_users() => {
                self.refuse(origin, Status::UnknownCommand, client, cx);
            }
            BinaryCommand::SaslList => self.answer(Form::Silent, client, cx, |out| {
                reply::binary_pair(out, origin, b"", b"PLAIN");
            }),
            BinaryCommand::SaslStep => self.refuse(origin, Status::NotAllowed, client, cx),
            BinaryCommand::SaslAuth { mechanism, message } => {
                self.sasl(origin, mechanism, message, client, cx)?;
            }
            BinaryCommand::Refused { status, close } => {
                self.refuse(origin, status, client, cx);
                if close {
                    client.break_off();
                }
            }
        }
        Some(())
    }

    /// `None` if the storage command has to wait.
    fn binary_store(
        &mut self,
        origin: Origin,
        command: binary::BinaryCommand<'_>,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let binary::BinaryCommand::Store { verb, key, flags, exptime, stamp, value, quiet } = command else {
            unreachable!("it is one")
        };
        let expiry = expiry_from_client(i64::from(exptime), cx.now);
        let put = |condition| Request::Put { key, value, flags, expiry, condition };
        let request = match (verb, stamp_of(stamp)) {
            (binary::BinaryVerb::Append, stamp) => Request::Append { key, value, stamp },
            (binary::BinaryVerb::Prepend, stamp) => Request::Prepend { key, value, stamp },
            (_, Some(stamp)) => put(Condition::Stamp(stamp)),
            (binary::BinaryVerb::Set, None) => put(Condition::Always),
            (binary::BinaryVerb::Add, None) => put(Condition::Absent),
            (binary::BinaryVerb::Replace, None) => put(Condition::Present),
        };
        let form = Form::Binary { answer: BinaryAnswer::Store { verb, stamped: stamp != 0 }, origin, quiet };
        self.submit(form, request, key, value.len(), client, cx)?;
        count(&cx.counters.cmd_set, 1);
        Some(())
    }

    pub(super) fn refuse(&mut self, origin: Origin, status: Status, client: &mut Client, cx: &mut Context<'_>) {
        self.answer(Form::Silent, client, cx, |out| reply::binary_refusal(out, origin, status, status.text()));
    }

    fn binary_stats(
        &mut self,
        origin: Origin,
        argument: &[u8],
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let lines = match argument {
            b"" => {
                self.all_answered(client)?;
                general_lines(&self.options, cx)
            }
            b"reset" => {
                cx.figures.reset();
                Vec::new()
            }
            _ if argument.starts_with(b"detail") => {
                return self.binary_detail(origin, &argument[b"detail".len()..], client, cx);
            }
            other => match cx.figures.group(other) {
                Some(lines) => lines,
                None => {
                    self.refuse(origin, Status::NotFound, client, cx);
                    return Some(());
                }
            },
        };
        self.binary_lines(origin, lines, client, cx);
        Some(())
    }

    /// `stats detail`; `None` if it has to wait. As in memcached a word is known by its beginning.
    fn binary_detail(&mut self, origin: Origin, word: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let is = |start: &[u8]| word.starts_with(start);
        if is(b" dump") {
            let lines = self.prefix_lines(client, cx)?;
            self.answer(Form::Silent, client, cx, |out| {
                reply::binary_pair(out, origin, b"detailed", &lines);
                reply::binary_success(out, origin, false, 0);
            });
        } else if is(b" on") || is(b" off") {
            cx.figures.observers.count_prefixes(is(b" on"));
            self.answer(Form::Silent, client, cx, |out| reply::binary_success(out, origin, false, 0));
        } else {
            self.refuse(origin, Status::NotFound, client, cx);
        }
        Some(())
    }

    fn binary_lines(
        &mut self,
        origin: Origin,
        lines: Vec<(String, String)>,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) {
        self.answer(Form::Silent, client, cx, |out| {
            for (name, value) in lines {
                reply::binary_pair(out, origin, name.as_bytes(), value.as_bytes());
            }
            // An empty one ends the list.
            reply::binary_success(out, origin, false, 0);
        });
    }
}

/// Whether a client may send it before it has logged in.
fn is_of_login(command: &binary::BinaryCommand<'_>) -> bool {
    use binary::BinaryCommand;
    matches!(
        command,
        BinaryCommand::SaslList
            | BinaryCommand::SaslAuth { .. }
            | BinaryCommand::SaslStep
            | BinaryCommand::Version
            | BinaryCommand::Quit { .. }
            | BinaryCommand::Refused { .. }
    )
}

/// A stamp of 0 is none.
fn stamp_of(stamp: u64) -> Option<u64> {
    (stamp != 0).then_some(stamp)
}
