//! The catalog, as clients of Flight SQL ask for it: one catalog, one schema, and keyspaces as its tables.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::sql::{
    Command, CommandGetCatalogs, CommandGetDbSchemas, CommandGetTableTypes, CommandGetTables, CommandGetXdbcTypeInfo,
};
use arrow_flight::{FlightDescriptor, FlightInfo};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use tapetum_service::failure::{Failure, FailureKind};
use tapetum_service::reply::{KeyspaceRow, Reply};
use tapetum_service::request::Request;
use tapetum_service::statements::{CATALOG, SCHEMA};

use crate::call::Call;
use crate::plan::columns_of;
use crate::sql_info;

/// The type of every table.
const TABLE: &str = "TABLE";

/// The schema of what a command of the catalog is answered with; `None` if it is none of those.
pub fn schema_of(command: &Command) -> Option<SchemaRef> {
    Some(match command {
        Command::CommandGetCatalogs(asked) => (*asked).into_builder().schema(),
        Command::CommandGetDbSchemas(asked) => asked.clone().into_builder().schema(),
        Command::CommandGetTables(asked) => asked.clone().into_builder().schema(),
        Command::CommandGetTableTypes(asked) => asked.into_builder().schema(),
        Command::CommandGetSqlInfo(_) => sql_info::schema(),
        Command::CommandGetXdbcTypeInfo(_) => sql_info::type_schema(),
        Command::CommandGetPrimaryKeys(_) => key_schema(),
        Command::CommandGetExportedKeys(_)
        | Command::CommandGetImportedKeys(_)
        | Command::CommandGetCrossReference(_) => reference_schema(),
        _ => return None,
    })
}

/// Answers a command of the catalog.
///
/// # Errors
/// If there is no store, or it is none of those.
pub fn rows_of(call: &Call, command: Command) -> Result<RecordBatch, Failure> {
    let broken = |error: arrow_flight::error::FlightError| Failure::new(FailureKind::Store, error.to_string());
    match command {
        Command::CommandGetCatalogs(asked) => catalogs(asked).map_err(broken),
        Command::CommandGetDbSchemas(asked) => schemas(asked).map_err(broken),
        Command::CommandGetTables(asked) => tables(call, asked),
        Command::CommandGetTableTypes(asked) => table_types(asked).map_err(broken),
        Command::CommandGetSqlInfo(asked) => sql_info::rows(&asked).map_err(broken),
        Command::CommandGetXdbcTypeInfo(CommandGetXdbcTypeInfo { data_type }) => {
            sql_info::types(data_type).map_err(broken)
        }
        // A key has fields, and none of them refers to another keyspace.
        Command::CommandGetPrimaryKeys(_) => Ok(RecordBatch::new_empty(key_schema())),
        Command::CommandGetExportedKeys(_)
        | Command::CommandGetImportedKeys(_)
        | Command::CommandGetCrossReference(_) => Ok(RecordBatch::new_empty(reference_schema())),
        other => Err(Failure::bad(format!("this door does not know {}", other.type_url()))),
    }
}

fn catalogs(asked: CommandGetCatalogs) -> Result<RecordBatch, arrow_flight::error::FlightError> {
    let mut rows = asked.into_builder();
    rows.append(CATALOG);
    rows.build()
}

fn schemas(asked: CommandGetDbSchemas) -> Result<RecordBatch, arrow_flight::error::FlightError> {
    let mut rows = asked.into_builder();
    rows.append(CATALOG, SCHEMA);
    rows.build()
}

fn table_types(asked: CommandGetTableTypes) -> Result<RecordBatch, arrow_flight::error::FlightError> {
    let mut rows = asked.into_builder();
    rows.append(TABLE);
    rows.build()
}

fn tables(call: &Call, asked: CommandGetTables) -> Result<RecordBatch, Failure> {
    let mut rows = asked.into_builder();
    for keyspace in keyspaces(call)? {
        // A format of another version is not understood here.
        let schema = columns_of(keyspace.format.as_deref()).or_else(|_| columns_of(None))?;
        let appended = rows.append(CATALOG, SCHEMA, &keyspace.name, TABLE, &schema);
        appended.map_err(|error| Failure::new(FailureKind::Store, error.to_string()))?;
    }
    rows.build().map_err(|error| Failure::new(FailureKind::Store, error.to_string()))
}

/// The keyspaces that have records and that the asker may read: not block devices, nor those that are being dropped.
fn keyspaces(call: &Call) -> Result<Vec<KeyspaceRow>, Failure> {
    let told = call.gather(Request::Keyspaces { name: None, freeze: None })?;
    let rows = told.into_iter().find_map(|reply| if let Reply::Keyspaces(rows) = reply { Some(rows) } else { None });
    let has_records = |row: &KeyspaceRow| row.block_device.is_none() && !row.is_dropping;
    Ok(rows.unwrap_or_default().into_iter().filter(has_records).collect())
}

fn text(name: &str, nullable: bool) -> Field {
    Field::new(name, DataType::Utf8, nullable)
}

fn key_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        text("catalog_name", true),
        text("db_schema_name", true),
        text("table_name", false),
        text("column_name", false),
        Field::new("key_sequence", DataType::Int32, false),
        text("key_name", true),
    ]))
}

fn reference_schema() -> SchemaRef {
    let side = |side: &str| {
        let name = |of: &str| format!("{side}_{of}");
        [
            text(&name("catalog_name"), true),
            text(&name("db_schema_name"), true),
            text(&name("table_name"), false),
            text(&name("column_name"), false),
        ]
    };
    let behind = [
        Field::new("key_sequence", DataType::Int32, false),
        text("fk_key_name", true),
        text("pk_key_name", true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ];
    let fields: Vec<Field> = side("pk").into_iter().chain(side("fk")).chain(behind).collect();
    Arc::new(Schema::new(fields))
}

/// All keyspaces that the asker may read, each as what is asked for by its name.
pub fn flights(call: &Call) -> Result<Vec<FlightInfo>, Failure> {
    let flight = |keyspace: KeyspaceRow| {
        let schema = columns_of(keyspace.format.as_deref()).or_else(|_| columns_of(None))?;
        let info = FlightInfo::new().try_with_schema(&schema);
        let info = info.map_err(|error| Failure::new(FailureKind::Store, error.to_string()))?;
        let records = keyspace.items.and_then(|items| i64::try_from(items).ok()).unwrap_or(-1);
        let descriptor = FlightDescriptor::new_path(vec![keyspace.name]);
        Ok(info.with_descriptor(descriptor).with_total_records(records).with_total_bytes(-1))
    };
    keyspaces(call)?.into_iter().map(flight).collect()
}
