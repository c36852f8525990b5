//! Logging in, and requests that a client's user may not make.

use tapetum_access::credentials::{Credentials, NoCredentials};
use tapetum_access::gate::{LoginError, Verdict};
use tapetum_service::audit::{self, Asker};
use tapetum_service::escapes;
use tapetum_service::failure::Failure;
use tapetum_service::request::Role;

use super::access::{Admission, ClientAccess};
use super::door::{Memcached, Protocol};
use super::needs::{ADMIN_STORE, Need, Over, READ, WRITE};
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::net::out::Pool;
use crate::protocol::binary::{Origin, Status};
use crate::protocol::login::{self, TextLogin};
use crate::protocol::reply::{self, BinaryAnswer, Form, TextAnswer};
use crate::protocol::text;
use crate::store::errands::Answer;

const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated\r\n";
const FAILURE: &str = "CLIENT_ERROR authentication failure\r\n";
const BUSY: &str = "CLIENT_ERROR too many log in now: try again in a while\r\n";
const MALFORMED: &str = "CLIENT_ERROR bad command line termination\r\n";

impl Memcached {
    pub(super) fn has_users(&self) -> bool {
        matches!(self.options.admission, Admission::Users(_))
    }

    /// The next frame of a client that has not logged in: as [`Memcached::frame`].
    pub(super) fn text_login_frame(&mut self, rest: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        let (login, bytes) = match login::parse(rest) {
            Some(Ok(login)) => login,
            Some(Err(needed)) => {
                client.note_secret();
                return self.need_more(needed, 0, client);
            }
            None => {
                client.break_off();
                return None;
            }
        };
        match login {
            TextLogin::Login { credentials, noreply } => {
                let form = Form::Text { answer: TextAnswer::Login, noreply };
                self.log_in(Credentials::of_words(credentials), form, client, cx)?;
                client.note_secret();
            }
            TextLogin::Quit => client.close(),
            TextLogin::Refused => self.say(UNAUTHENTICATED, client, cx),
            // The rest of it would be taken for lines.
            TextLogin::Malformed => {
                self.say(MALFORMED, client, cx);
                client.break_off();
            }
        }
        self.frame_done(0, client);
        Some(bytes)
    }

    /// A message of SASL. `None` if it has to wait.
    pub(super) fn sasl(
        &mut self,
        origin: Origin,
        mechanism: &[u8],
        message: &[u8],
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let credentials = match mechanism {
            b"PLAIN" => Credentials::of_plain(message),
            _ => Err(NoCredentials),
        };
        let form = Form::Binary { answer: BinaryAnswer::Login, origin, quiet: false };
        self.log_in(credentials, form, client, cx)?;
        client.note_secret();
        Some(())
    }

    /// `None` if it has to wait.
    fn log_in(
        &mut self,
        credentials: Result<Credentials, NoCredentials>,
        form: Form,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let Admission::Users(gate) = &self.options.admission else { return Some(()) };
        let gate = std::sync::Arc::clone(gate);
        self.all_answered(client)?;
        let admission = client.admit(self.load(), false, 0, cx)?;
        let number = self.slots.push(form, b"", admission.charge_bytes);
        client.keep(admission, cx.budget);
        // Requests behind it wait for the verdict.
        client.set_barrier();
        self.access = ClientAccess::Nobody;
        let answer = cx.errands.answer_to(cx.worker, client.token(number));
        let done = move |verdict| answer(Answer::LoggedIn(verdict));
        if let Some(verdict) = gate.log_in(credentials, client.address(), done) {
            self.logged_in(number, verdict, client, cx.pool);
        }
        Some(())
    }

    /// The password of request `number` was looked at.
    pub(super) fn logged_in(&mut self, number: u32, verdict: Verdict, client: &mut Client, pool: &mut Pool) {
        let form = self.slots.form(number);
        let mut out = Vec::new();
        let verdict = verdict.map(|identity| {
            self.access = ClientAccess::of_user(identity, &self.options.keyspace_name);
        });
        match (form, verdict) {
            (Form::Binary { origin, .. }, Ok(())) => reply::binary_pair(&mut out, origin, b"", b"Authenticated"),
            (Form::Binary { origin, .. }, Err(error)) => {
                let text = match error {
                    LoginError::Wrong => Status::NotAllowed.text().to_owned(),
                    LoginError::Busy => error.to_string(),
                };
                reply::binary_refusal(&mut out, origin, Status::NotAllowed, &text);
            }
            (_, Ok(())) => out.extend_from_slice(b"STORED\r\n"),
            (_, Err(LoginError::Wrong)) => out.extend_from_slice(FAILURE.as_bytes()),
            (_, Err(LoginError::Busy)) => out.extend_from_slice(BUSY.as_bytes()),
        }
        if matches!(form, Form::Text { noreply: true, .. }) {
            out.clear();
        }
        self.slots.complete_with(number, out, &mut client.out, pool);
    }

    /// Whether the users file leaves a client of the text protocol nothing to go on with: it is no user any more, or may not do what it has
    /// begun. The next request of a binary client is refused, and ends it.
    pub(super) fn is_taken_away(&self) -> bool {
        let begun = match &self.many {
            _ if self.watching.is_some() => ADMIN_STORE,
            Some(many) if many.touch.is_some() => WRITE,
            _ => READ,
        };
        let has_begun = self.has_begun();
        self.protocol == Protocol::Text && (self.access.is_nobody() || has_begun && !self.access.allows(begun))
    }

    /// Whether a request goes on over several steps.
    fn has_begun(&self) -> bool {
        self.watching.is_some() || self.many.is_some() || self.listing.is_some()
    }

    /// Ends the client. Its next line would be taken for a login, and each value that it stores for a wrong password.
    pub(super) fn end_taken_away(&mut self, client: &mut Client, cx: &mut Context<'_>) {
        if !self.has_begun() && self.skipped_line.is_none() {
            self.say(UNAUTHENTICATED, client, cx);
        }
        client.break_off();
    }

    pub(super) fn refuse_text(
        &mut self,
        need: Need,
        is_quiet: bool,
        frame: &[u8],
        client: &mut Client,
        cx: &mut Context<'_>,
    ) {
        let why = self.why_not(need);
        self.note_refused(need, frame, &why, client);
        if !is_quiet {
            self.say(&format!("CLIENT_ERROR {why}\r\n"), client, cx);
        }
    }

    pub(super) fn refuse_binary(&mut self, origin: Origin, need: Need, client: &mut Client, cx: &mut Context<'_>) {
        let why = self.why_not(need);
        self.note_refused(need, format!("opcode {:#04x}", origin.opcode).as_bytes(), &why, client);
        self.answer(Form::Silent, client, cx, |out| reply::binary_refusal(out, origin, Status::NotAllowed, &why));
    }

    fn why_not(&self, need: Need) -> String {
        let (name, keyspace) = (self.access.name().unwrap_or("nobody"), &self.options.keyspace_name);
        match need {
            Need::Nothing => "not allowed".into(),
            Need::Role(role, Over::Keyspace) => {
                format!("{name} has no right to {} the keyspace {}", role.verb(), escapes::word(keyspace))
            }
            Need::Role(role, Over::Store) => format!("{name} has no right to {} the store", role.verb()),
        }
    }

    /// Notes an admin's request that was submitted last, when it has ended.
    pub(super) fn audit_last(&mut self, frame: &[u8], client: &Client) {
        let number = self.slots.last_number();
        match self.has_users() {
            true if self.slots.is_pending(number) => self.audited.push((number, first_line(frame))),
            // It was told to come again.
            true => self.note(&first_line(frame), &Err(Failure::bad("busy")), client),
            false => {}
        }
    }

    /// Notes an admin's request that was answered at once.
    pub(super) fn audit_answered(&self, need: Need, frame: &[u8], client: &Client) {
        if self.has_users() && is_of_admins(need) {
            self.note(&first_line(frame), &Ok(()), client);
        }
    }

    pub(super) fn note_audited(&mut self, number: u32, failure: Option<String>, client: &Client) {
        if let Some(at) = self.audited.iter().position(|(of, _)| *of == number) {
            let (_, words) = self.audited.swap_remove(at);
            self.note(&words, &failure.map_or(Ok(()), |why| Err(Failure::bad(why))), client);
        }
    }

    fn note_refused(&self, need: Need, frame: &[u8], why: &str, client: &Client) {
        if is_of_admins(need) {
            self.note(&first_line(frame), &Err(Failure::bad(why)), client);
        }
    }

    fn note(&self, words: &str, ended: &Result<(), Failure>, client: &Client) {
        let from = client.address().map_or_else(|| "this machine".to_owned(), |address| address.to_string());
        let asker = Asker { name: self.access.name().unwrap_or("nobody"), from: &from, door: "memcached" };
        audit::note(asker, words, ended);
    }
}

fn is_of_admins(need: Need) -> bool {
    matches!(need, Need::Role(Role::Admin, _))
}

/// A command without its value.
fn first_line(frame: &[u8]) -> String {
    let line = frame.split(|byte| *byte == b'\n').next().unwrap_or_default();
    escapes::escaped(text::split(line).collect::<Vec<_>>().join(&b' ').trim_ascii())
}
