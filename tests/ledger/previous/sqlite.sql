CREATE TABLE audit (
	id VARCHAR NOT NULL, 
	at_us BIGINT NOT NULL, 
	actor VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	detail JSON NOT NULL, 
	PRIMARY KEY (id)
);

CREATE INDEX ix_audit_at_us ON audit (at_us);

CREATE TABLE keys (
	id VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	team VARCHAR NOT NULL, 
	project VARCHAR, 
	name VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	budget JSON, 
	created_us BIGINT NOT NULL, 
	expires_us BIGINT, 
	revoked_us BIGINT, 
	PRIMARY KEY (id), 
	UNIQUE (digest)
);

CREATE INDEX ix_keys_team ON keys (team);

CREATE TABLE ledger (
	id VARCHAR NOT NULL, 
	call_id VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	at_us BIGINT NOT NULL, 
	kind VARCHAR NOT NULL, 
	corrects VARCHAR, 
	team VARCHAR NOT NULL, 
	project VARCHAR, 
	key_id VARCHAR NOT NULL, 
	client VARCHAR NOT NULL, 
	run VARCHAR, 
	parent_run VARCHAR, 
	subgoal VARCHAR, 
	tags JSON NOT NULL, 
	dialect VARCHAR NOT NULL, 
	stream BOOLEAN NOT NULL, 
	model VARCHAR NOT NULL, 
	upstream_model VARCHAR NOT NULL, 
	served_model VARCHAR, 
	backend VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	lane VARCHAR NOT NULL, 
	served_tier VARCHAR, 
	latency_class VARCHAR NOT NULL, 
	policy_version VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	decision JSON NOT NULL, 
	receipts JSON NOT NULL, 
	status VARCHAR NOT NULL, 
	http_status INTEGER, 
	error VARCHAR, 
	first_token_ms FLOAT, 
	total_ms FLOAT NOT NULL, 
	uncached BIGINT, 
	cache_read BIGINT, 
	write_5m BIGINT, 
	write_1h BIGINT, 
	write_30m BIGINT, 
	write_12h BIGINT, 
	write_unknown BIGINT, 
	output BIGINT, 
	reasoning BIGINT, 
	other JSON NOT NULL, 
	flags JSON NOT NULL, 
	tokens_from VARCHAR NOT NULL, 
	predicted_read_tokens BIGINT, 
	miss JSON, 
	cost_nanos BIGINT, 
	uncached_cost_nanos BIGINT, 
	price_rows JSON NOT NULL, 
	PRIMARY KEY (id)
);

CREATE INDEX ix_ledger_at_us ON ledger (at_us);

CREATE INDEX ix_ledger_call_id ON ledger (call_id);

CREATE INDEX ix_ledger_corrects ON ledger (corrects);

CREATE INDEX ix_ledger_run ON ledger (run);

CREATE INDEX ledger_model_at ON ledger (model, at_us);

CREATE INDEX ledger_team_at ON ledger (team, at_us);

CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	at_us BIGINT NOT NULL, 
	PRIMARY KEY (version)
);
