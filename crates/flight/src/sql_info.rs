//! The door itself and its types, as clients of Flight SQL hear of them.

use std::sync::LazyLock;

use arrow_array::RecordBatch;
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{
    SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder,
};
use arrow_flight::sql::{
    CommandGetSqlInfo, Nullable, Searchable, SqlInfo, SqlNullOrdering, SqlSupportedCaseSensitivity,
    SqlSupportedTransaction, XdbcDataType,
};
use arrow_schema::SchemaRef;

/// Keywords that are not in SQL's own list, and names that arithmetic has: none.
const NONE: &[&str] = &[];

static INFO: LazyLock<SqlInfoData> = LazyLock::new(|| {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "tapetum");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, "60");
    info.append(SqlInfo::FlightSqlServerReadOnly, false);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    info.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, true);
    info.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, false);
    info.append(SqlInfo::FlightSqlServerStatementTimeout, 0i32);
    info.append(SqlInfo::FlightSqlServerTransactionTimeout, 0i32);
    info.append(SqlInfo::SqlDdlCatalog, false);
    info.append(SqlInfo::SqlDdlSchema, false);
    info.append(SqlInfo::SqlDdlTable, false);
    info.append(SqlInfo::SqlIdentifierCase, SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32);
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    info.append(
        SqlInfo::SqlQuotedIdentifierCase,
        SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32,
    );
    info.append(SqlInfo::SqlAllTablesAreSelectable, true);
    info.append(SqlInfo::SqlNullOrdering, SqlNullOrdering::SqlNullsSortedAtEnd as i32);
    info.append(SqlInfo::SqlKeywords, NONE);
    info.append(SqlInfo::SqlSupportsColumnAliasing, true);
    info.append(SqlInfo::SqlNullPlusNullIsNull, true);
    info.append(SqlInfo::SqlMaxConnections, 0i64);
    info.append(SqlInfo::SqlMaxStatements, 0i64);
    info.build().expect("all of these have a form in Arrow")
});

static TYPES: LazyLock<XdbcTypeInfoData> = LazyLock::new(|| {
    let mut types = XdbcTypeInfoDataBuilder::new();
    for (name, data_type, column_size, prefix) in [
        ("BOOLEAN", XdbcDataType::XdbcBit, 1, None),
        ("BIGINT", XdbcDataType::XdbcBigint, 64, None),
        ("UBIGINT", XdbcDataType::XdbcBigint, 64, None),
        ("DOUBLE", XdbcDataType::XdbcDouble, 53, None),
        ("TIMESTAMP", XdbcDataType::XdbcTimestamp, 26, Some("'")),
        ("VARCHAR", XdbcDataType::XdbcVarchar, 16 << 20, Some("'")),
        ("VARBINARY", XdbcDataType::XdbcVarbinary, 16 << 20, Some("X'")),
    ] {
        types.append(XdbcTypeInfo {
            type_name: name.into(),
            data_type,
            column_size: Some(column_size),
            literal_prefix: prefix.map(Into::into),
            literal_suffix: prefix.map(|_| "'".into()),
            create_params: None,
            nullable: Nullable::NullabilityNullable,
            case_sensitive: true,
            searchable: Searchable::Full,
            unsigned_attribute: Some(name == "UBIGINT"),
            fixed_prec_scale: false,
            auto_increment: Some(false),
            local_type_name: None,
            minimum_scale: None,
            maximum_scale: None,
            sql_data_type: data_type,
            datetime_subcode: None,
            num_prec_radix: Some(2),
            interval_precision: None,
        });
    }
    types.build().expect("all of these have a form in Arrow")
});

pub fn schema() -> SchemaRef {
    CommandGetSqlInfo::default().into_builder(&INFO).schema()
}

pub fn rows(asked: &CommandGetSqlInfo) -> Result<RecordBatch, FlightError> {
    asked.clone().into_builder(&INFO).build()
}

pub fn type_schema() -> SchemaRef {
    TYPES.schema()
}

pub fn types(data_type: Option<i32>) -> Result<RecordBatch, FlightError> {
    TYPES.record_batch(data_type)
}
