//! The calls of Flight: which part of the door answers what.
//!
//! Threads: the door's; work goes to threads of its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow_array::RecordBatch;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
    Any, Command, CommandPreparedStatementQuery, CommandStatementQuery, DoPutPreparedStatementResult, ProstMessageExt,
};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, Criteria, Empty, FlightData,
    FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse, IpcMessage, PollInfo, PutResult,
    RenewFlightEndpointRequest, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::{ArrowError, SchemaRef};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use prost::Message;
use tapetum::query::Statement;
use tapetum::{OwnedScalar, Store};
use tapetum_arrow::ArrowBatches;
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::statements;
use tonic::{Request, Response, Status, Streaming};

use crate::actions::{self, ResultStream};
use crate::answering::{DataStream, DoorShared, RowsWanted, encoded, too_old};
use crate::call::Call;
use crate::catalog;
use crate::command::{self, COMMAND_BYTES_MAX};
use crate::doorkeeper::is_bearer;
use crate::messages;
use crate::moments::{LASTS, Moment};
use crate::plan::{self, ConstantColumn, Plan};
use crate::prepared::Prepared;
use crate::putting;
use crate::status::status_of;
use crate::ticket::{TicketBody, TicketError, Work, is_ticket};
use tapetum_access::asker::Asker;

const CREATE_PREPARED: &str = "CreatePreparedStatement";
const CLOSE_PREPARED: &str = "ClosePreparedStatement";
const CANCEL_INFO: &str = "CancelFlightInfo";
const RENEW_ENDPOINT: &str = "RenewFlightEndpoint";
const CLOSE_SESSION: &str = "CloseSession";
const AUTHORIZATION: &str = "authorization";
/// A CloseSessionResult, for which the library has no type: its status, closed.
const SESSION_CLOSED: [u8; 2] = [0x08, 1];

/// See the [module](self).
pub struct Calls {
    pub shared: Arc<DoorShared>,
}

/// The meaning of a descriptor.
#[allow(clippy::large_enum_variant)] // A call has one.
enum Asked {
    Json(command::Command),
    Sql(Box<Command>),
    /// A keyspace by its name: all of it.
    Keyspace(String),
}

impl Asked {
    fn of(descriptor: &FlightDescriptor) -> Result<Asked, Failure> {
        let command = &descriptor.cmd[..];
        if let [name] = &descriptor.path[..] {
            return Ok(Asked::Keyspace(name.clone()));
        }
        if command.len() > COMMAND_BYTES_MAX {
            return Err(Failure::bad(format!(
                "a command has at most {COMMAND_BYTES_MAX} bytes, and this one {}: make the statement shorter",
                command.len()
            )));
        }
        if command::Command::is_json(command) {
            return Ok(Asked::Json(command::Command::parse(command)?));
        }
        let not_understood =
            || Failure::bad("the descriptor is a command of Flight SQL, or one in JSON, or the path of one keyspace");
        let any = Any::decode(command).map_err(|_| not_understood())?;
        Ok(Asked::Sql(Box::new(Command::try_from(any).map_err(|_| not_understood())?)))
    }
}

/// The rows of a ticket that was shown.
#[allow(clippy::large_enum_variant)] // A call has one.
enum Shown {
    Rows(RowsWanted, SchemaRef),
    Batch(RecordBatch),
}

/// An answer that consists of rows.
#[allow(clippy::large_enum_variant)] // A call has one.
enum Answer {
    Rows(Plan),
    /// Rows of the catalog; their ticket is the command.
    Catalog(SchemaRef, Command),
}

impl Calls {
    /// The call of a request that the doorkeeper has let in.
    fn call<T>(&self, request: &Request<T>) -> Result<Call, Status> {
        let asker = request.extensions().get::<Asker>().cloned();
        let asker =
            asker.ok_or_else(|| Status::unauthenticated("nobody looked who asks: this is a mistake of the server"))?;
        Ok(Call { shared: Arc::clone(&self.shared), asker })
    }

    /// The answer to a descriptor; nothing is frozen yet.
    fn answer(call: &Call, descriptor: &FlightDescriptor) -> Result<Answer, Failure> {
        let command = match Asked::of(descriptor)? {
            Asked::Json(command) => return Ok(Answer::Rows(Plan::of_command(call, command)?)),
            Asked::Keyspace(keyspace) => {
                let query = command::QueryCommand { keyspace, ..command::QueryCommand::default() };
                return Ok(Answer::Rows(Plan::of_command(call, command::Command::Query(query))?));
            }
            Asked::Sql(command) => *command,
        };
        match command {
            Command::CommandStatementQuery(CommandStatementQuery { query, transaction_id }) => {
                refuse_transaction(transaction_id.as_deref())?;
                Ok(Answer::Rows(Plan::of_statement(call, &query, &[])?))
            }
            Command::CommandPreparedStatementQuery(CommandPreparedStatementQuery { prepared_statement_handle }) => {
                let prepared = Prepared::of_handle(&prepared_statement_handle)?;
                Ok(Answer::Rows(Plan::of_statement(call, &prepared.sql, &prepared.values())?))
            }
            command => match catalog::schema_of(&command) {
                Some(schema) => Ok(Answer::Catalog(schema, command)),
                None => Err(Failure::bad(
                    "the descriptor asks for no rows that this door has: give a statement that reads, a prepared one, a command of the \
                     catalog, JSON, or the path of one keyspace",
                )),
            },
        }
    }

    async fn info(call: &Call, descriptor: FlightDescriptor) -> Result<FlightInfo, Status> {
        let asked = descriptor.clone();
        let Plan { schema, work } = match call.on_thread(move |call| Calls::answer(call, &asked)).await? {
            Answer::Rows(plan) => plan,
            Answer::Catalog(schema, command) => {
                let ticket = Ticket::new(command.into_any().encode_to_vec());
                let info = Calls::empty_info(&schema, descriptor).map_err(|failure| status_of(&failure))?;
                return Ok(info.with_endpoint(FlightEndpoint::new().with_ticket(ticket)));
            }
        };
        // Others read a moment of their own, or none.
        let moment = match work.needs_moment() {
            true => Some(call.moment().await?),
            false => None,
        };
        let is_in_order = work.is_in_order();
        let endpoints = call.on_thread(move |call| Calls::endpoints(call, work, moment)).await?;
        let info = Calls::empty_info(&schema, descriptor).map_err(|failure| status_of(&failure))?;
        Ok(endpoints.into_iter().fold(info.with_ordered(is_in_order), FlightInfo::with_endpoint))
    }

    fn empty_info(schema: &SchemaRef, descriptor: FlightDescriptor) -> Result<FlightInfo, Failure> {
        let info = FlightInfo::new().try_with_schema(schema).map_err(of_arrow)?;
        Ok(info.with_descriptor(descriptor).with_total_records(-1).with_total_bytes(-1))
    }

    /// The endpoints of some work, for so long as its moment stays: by ranges of keys, where there are many.
    fn endpoints(call: &Call, work: Work, moment: Option<Moment>) -> Result<Vec<FlightEndpoint>, Failure> {
        let store = call.served.store()?;
        let opening = moment.map_or_else(|| call.moments.opening(&store), |moment| moment.opening);
        let work = moment.map_or(work.clone(), |moment| work.at(moment.freeze));
        let expires = Calls::expires(&store, &work)?;
        let works = work.by_ranges(&store)?;
        if let Some(Moment { freeze, .. }) = moment {
            call.moments.expect(freeze, works.len() - 1);
        }
        let endpoint = |work: &Work| {
            let ticket = Ticket::new(call.office.sign(opening, call.asker.name(), work));
            FlightEndpoint { expiration_time: Some(expires), ..FlightEndpoint::new().with_ticket(ticket) }
        };
        Ok(works.iter().map(endpoint).collect())
    }

    /// How long the tickets of some work are good.
    fn expires(store: &Store, work: &Work) -> Result<prost_types::Timestamp, Failure> {
        let lasts = match work.freeze() {
            Some(freeze) => {
                let view = store.frozen(freeze).map_err(|error| too_old(&error))?;
                Duration::from_micros(view.report().left_us)
            }
            None => LASTS,
        };
        Ok((SystemTime::now() + lasts).into())
    }

    /// The work of a ticket, if it is the asker's own, and the asker may have it done now.
    fn work(call: &Call, ticket: &[u8]) -> Result<Work, Failure> {
        let store = call.served.store()?;
        let body = call.office.check(call.moments.opening(&store), ticket).map_err(|error| match error {
            TicketError::Forged => Failure::bad("this ticket is not of this server's making, or was changed: ask for another"),
            TicketError::TooOld => Failure::new(
                FailureKind::TooOld,
                "snapshot too old: the server was started again since this ticket was made, or it is another server's; ask the question again",
            ),
        })?;
        let TicketBody { user, work } = body;
        if user.as_deref() != call.asker.name() {
            return Err(Failure::new(
                FailureKind::Forbidden,
                "this ticket is another user's: ask for one of your own by GetFlightInfo",
            ));
        }
        if let Work::Request { request, .. } = &work {
            call.asker.allow(request)?;
        }
        Ok(work)
    }

    fn renewed(call: &Call, endpoint: FlightEndpoint) -> Result<FlightEndpoint, Failure> {
        let ticket = endpoint.ticket.as_ref().map_or(&[][..], |ticket| &ticket.ticket);
        let (work, store) = (Calls::work(call, ticket)?, call.served.store()?);
        if let Some(freeze) = work.freeze() {
            let view = store.frozen(freeze).map_err(|error| too_old(&error))?;
            // A freeze of the client's own may last longer.
            if Duration::from_micros(view.report().left_us) < LASTS {
                store.renew_freeze(freeze, LASTS).map_err(|error| too_old(&error))?;
            }
        }
        Ok(FlightEndpoint { expiration_time: Some(Calls::expires(&store, &work)?), ..endpoint })
    }

    fn shown(call: &Call, ticket: &[u8]) -> Result<Shown, Failure> {
        let work = Calls::work(call, ticket)?;
        let (schema, freeze) = (work.schema()?, work.freeze());
        Ok(match work {
            Work::Request { request, rows_max } => Shown::Rows(RowsWanted { request, rows_max, freeze }, schema),
            Work::Constants(sql) => match statements::parse(&sql)? {
                Statement::Constants(columns) => Shown::Batch(constants(&columns).map_err(of_arrow)?),
                Statement::Select(_) => return Err(Failure::bad("the statement has a FROM")),
            },
        })
    }

    async fn catalog_rows(call: &Call, ticket: &[u8]) -> Result<DataStream, Status> {
        let not_understood = || Status::invalid_argument("this is no ticket: ask for one with GetFlightInfo");
        let any = Any::decode(ticket).map_err(|_| not_understood())?;
        let command = Command::try_from(any).map_err(|_| not_understood())?;
        if catalog::schema_of(&command).is_none() {
            return Err(not_understood());
        }
        let batch = call.on_thread(move |call| catalog::rows_of(call, command)).await?;
        Ok(one_batch(batch))
    }

    async fn own_action(call: &Call, action: Action) -> Result<ResultStream, Status> {
        let one = |body: Vec<u8>| Ok(stream::iter([Ok(arrow_flight::Result { body: body.into() })]).boxed());
        let bad = |error: &dyn std::fmt::Display| {
            Status::invalid_argument(format!("the action's body makes no sense: {error}"))
        };
        match &*action.r#type {
            CREATE_PREPARED => {
                let any = Any::decode(action.body).map_err(|error| bad(&error))?;
                let asked = any.unpack::<ActionCreatePreparedStatementRequest>().map_err(|error| bad(&error))?;
                let asked = asked.ok_or_else(|| bad(&"it is no statement"))?;
                let made = call.on_thread(move |call| prepare(call, asked)).await?;
                one(made.as_any().encode_to_vec())
            }
            CLOSE_PREPARED => {
                let any = Any::decode(action.body).map_err(|error| bad(&error))?;
                any.unpack::<ActionClosePreparedStatementRequest>().map_err(|error| bad(&error))?;
                // Nothing was kept.
                Ok(stream::empty().boxed())
            }
            CANCEL_INFO => {
                let asked = CancelFlightInfoRequest::decode(action.body).map_err(|error| bad(&error))?;
                call.on_thread(move |call| forget(call, asked)).await?;
                one(CancelFlightInfoResult::new(CancelStatus::Cancelled).encode_to_vec())
            }
            RENEW_ENDPOINT => {
                let asked = RenewFlightEndpointRequest::decode(action.body).map_err(|error| bad(&error))?;
                let endpoint = asked.endpoint.ok_or_else(|| bad(&"it names no endpoint"))?;
                let renewed = call.on_thread(move |call| Calls::renewed(call, endpoint)).await?;
                one(renewed.encode_to_vec())
            }
            // Nothing is kept of a session.
            CLOSE_SESSION => one(SESSION_CLOSED.to_vec()),
            _ => actions::answer(call, action).await,
        }
    }
}

fn of_arrow(error: ArrowError) -> Failure {
    Failure::new(FailureKind::Store, error.to_string())
}

fn refuse_transaction(transaction: Option<&[u8]>) -> Result<(), Failure> {
    match transaction {
        None | Some([]) => Ok(()),
        Some(_) => Err(Failure::bad("there are no transactions over Flight: each statement reads one moment")),
    }
}

fn prepare(
    call: &Call,
    asked: ActionCreatePreparedStatementRequest,
) -> Result<ActionCreatePreparedStatementResult, Failure> {
    let ActionCreatePreparedStatementRequest { query, transaction_id } = asked;
    refuse_transaction(transaction_id.as_deref())?;
    let (plan, parameters) = Plan::of_unbound(call, &query)?;
    Ok(ActionCreatePreparedStatementResult {
        prepared_statement_handle: Prepared::new(query).to_handle().into(),
        dataset_schema: ipc(&plan.schema)?,
        parameter_schema: ipc(&plan::parameter_schema(parameters))?,
    })
}

fn ipc(schema: &SchemaRef) -> Result<prost::bytes::Bytes, Failure> {
    let options = IpcWriteOptions::default();
    let IpcMessage(bytes) = SchemaAsIpc::new(schema, &options).try_into().map_err(of_arrow)?;
    Ok(bytes)
}

/// The tickets of an answer are not shown any more. Those that are too old are forgotten already.
///
/// # Errors
/// If one is another user's, or the asker may not read what it is for.
fn forget(call: &Call, asked: CancelFlightInfoRequest) -> Result<(), Failure> {
    let endpoints = asked.info.map(|info| info.endpoint).unwrap_or_default();
    for ticket in endpoints.into_iter().filter_map(|endpoint| endpoint.ticket) {
        match Calls::work(call, &ticket.ticket) {
            Ok(work) => work.freeze().into_iter().for_each(|freeze| call.moments.forget(freeze, 1)),
            Err(failure) if failure.kind == FailureKind::Forbidden => return Err(failure),
            Err(_) => {}
        }
    }
    Ok(())
}

fn one_batch(batch: RecordBatch) -> DataStream {
    encoded(batch.schema(), stream::iter([Ok(batch)]))
}

/// The one row of a statement without FROM.
fn constants(columns: &[ConstantColumn]) -> Result<RecordBatch, ArrowError> {
    let mut batches = ArrowBatches::new(&plan::constant_columns(columns));
    let row: Vec<_> = columns.iter().map(|(_, value, _)| value.as_ref().map(OwnedScalar::as_scalar)).collect();
    let full = batches.push(&row)?;
    let last = batches.take()?;
    full.or(last).ok_or_else(|| ArrowError::ComputeError("a row became no batch".into()))
}

#[tonic::async_trait]
impl FlightService for Calls {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = DataStream;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = ResultStream;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = DataStream;

    /// A user who has logged in by name and password gets a token in the header `authorization`, which each later call shows.
    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        let call = self.call(&request)?;
        let mut response = Response::new(stream::iter([Ok(HandshakeResponse::default())]).boxed());
        let shown = request.metadata().get(AUTHORIZATION);
        if let (Some(gate), Some(identity), Some(shown)) = (&self.shared.gate, call.asker.identity(), shown) {
            // A token is not made longer by itself.
            let value = match is_bearer(shown.as_bytes()) {
                true => shown.clone(),
                false => {
                    let value = format!("Bearer {}", gate.token(identity)).parse();
                    value.map_err(|_| Status::internal("a token is no value of a header"))?
                }
            };
            response.metadata_mut().insert(AUTHORIZATION, value);
        }
        Ok(response)
    }

    async fn list_flights(&self, request: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        let flights = self.call(&request)?.on_thread(catalog::flights).await?;
        Ok(Response::new(stream::iter(flights.into_iter().map(Ok)).boxed()))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        let call = self.call(&request)?;
        Ok(Response::new(Calls::info(&call, request.into_inner()).await?))
    }

    async fn poll_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        // A plan is made at once: whoever polls has it with the first answer.
        let info = self.get_flight_info(request).await?.into_inner();
        Ok(Response::new(PollInfo {
            info: Some(info),
            flight_descriptor: None,
            progress: Some(1.0),
            expiration_time: None,
        }))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let call = self.call(&request)?;
        let descriptor = request.into_inner();
        let schema = call.on_thread(move |call| {
            let schema = match Calls::answer(call, &descriptor)? {
                Answer::Rows(plan) => plan.schema,
                Answer::Catalog(schema, _) => schema,
            };
            ipc(&schema)
        });
        Ok(Response::new(SchemaResult { schema: schema.await? }))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let call = self.call(&request)?;
        let ticket = request.into_inner().ticket;
        if !is_ticket(&ticket) {
            return Ok(Response::new(Calls::catalog_rows(&call, &ticket).await?));
        }
        let shown = call.on_thread(move |call| Calls::shown(call, &ticket)).await?;
        let stream = match shown {
            Shown::Batch(batch) => one_batch(batch),
            Shown::Rows(wanted, schema) => call.rows(wanted, schema),
        };
        Ok(Response::new(stream))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        let call = self.call(&request)?;
        let mut messages = request.into_inner();
        // The first message has the descriptor, and the schema.
        let Some(first) = messages.message().await? else {
            return Err(Status::invalid_argument("nothing was put: a descriptor comes first"));
        };
        let descriptor = first.flight_descriptor.clone().unwrap_or_default();
        let asked = Asked::of(&descriptor).map_err(|failure| status_of(&failure))?;
        let messages = stream::iter([Ok(first)]).chain(messages);
        let messages = messages.map(|message| {
            let message = message.map_err(|status| FlightError::Tonic(Box::new(status)))?;
            messages::check(&message).map_err(|why| FlightError::Tonic(Box::new(Status::invalid_argument(why))))?;
            Ok(message)
        });
        let batches = FlightRecordBatchStream::new_from_flight_data(messages);
        if let Asked::Sql(command) = &asked
            && let Command::CommandPreparedStatementQuery(CommandPreparedStatementQuery { prepared_statement_handle }) =
                &**command
        {
            let prepared = Prepared::of_handle(prepared_statement_handle).map_err(|failure| status_of(&failure))?;
            let rows = putting::first_rows(batches).await?;
            let bound = prepared.bound(&rows).map_err(|failure| status_of(&failure))?;
            let result = DoPutPreparedStatementResult { prepared_statement_handle: Some(bound.to_handle().into()) };
            return Ok(put_result(result.encode_to_vec()));
        }
        let target = match asked {
            Asked::Json(command::Command::Put(put)) => putting::Target::of_command(put),
            Asked::Keyspace(keyspace) => putting::Target::of_keyspace(keyspace),
            Asked::Sql(command) => putting::Target::of_sql(*command),
            Asked::Json(_) => {
                Err(Failure::bad("rows are put into a keyspace: the command is {\"put\": {\"keyspace\": …}}"))
            }
        };
        let target = target.map_err(|failure| status_of(&failure))?;
        let stored = putting::put(&call, target, batches).await?;
        Ok(put_result(stored))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let call = self.call(&request)?;
        Ok(Response::new(Calls::own_action(&call, request.into_inner()).await?))
    }

    async fn list_actions(&self, _request: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let of_flight = [
            (CREATE_PREPARED, "Flight SQL's"),
            (CLOSE_PREPARED, "Flight SQL's"),
            (CANCEL_INFO, "Flight's: the tickets of an answer are not needed any more"),
            (RENEW_ENDPOINT, "Flight's: a ticket stays good for another minute"),
            (CLOSE_SESSION, "Flight's: nothing is kept of a session"),
        ];
        let of_flight =
            of_flight.into_iter().map(|(name, told)| ActionType { r#type: name.into(), description: told.into() });
        let all: Vec<_> = of_flight.chain(actions::types()).map(Ok).collect();
        Ok(Response::new(stream::iter(all).boxed()))
    }

    async fn do_exchange(
        &self,
        _request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(Status::unimplemented("nothing is exchanged here: rows are asked for with DoGet, and put with DoPut"))
    }
}

fn put_result(app_metadata: Vec<u8>) -> Response<BoxStream<'static, Result<PutResult, Status>>> {
    Response::new(stream::iter([Ok(PutResult { app_metadata: app_metadata.into() })]).boxed())
}
