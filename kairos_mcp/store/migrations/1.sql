-- The store, version 1. It may change until 0.1.0 is released. Then it is frozen: later versions are files beside this one,
-- and they only add.
--
-- Times are milliseconds since 1970. `at` is when a row was written. Columns that hold structures are JSON.

-- A server that may own runs. It is alive while it holds its lock.
create table owner(
    id integer primary key,
    lock text not null unique,
    pid integer not null,
    via text not null,                            -- serve, or the command
    started_at integer not null,
    serves text                                   -- its workspaces, routes, settings file, version, and a digest of each setting
);

-- What a run, a branch of it, a mandate's day or a principal's day may use: caps (null: none), held, spent.
create table account(
    id integer primary key,
    parent integer references account,
    scope text not null,                          -- run, branch, mandate, day
    name text,                                    -- the branch's path, the mandate's id, the day's principal
    workspace text,                               -- the mandate's
    period text,                                  -- the day
    mistaken integer,                             -- when a person said that the clock had been wrong
    cap_rounds integer check(cap_rounds >= 0),
    cap_model_calls integer check(cap_model_calls >= 0),
    cap_input_tokens integer check(cap_input_tokens >= 0),
    cap_output_tokens integer check(cap_output_tokens >= 0),
    cap_total_tokens integer check(cap_total_tokens >= 0),
    cap_nano_usd integer check(cap_nano_usd >= 0),
    cap_tool_calls integer check(cap_tool_calls >= 0),
    cap_milliseconds integer check(cap_milliseconds >= 0),
    held_rounds integer not null default 0 check(held_rounds >= 0),
    held_model_calls integer not null default 0 check(held_model_calls >= 0),
    held_input_tokens integer not null default 0 check(held_input_tokens >= 0),
    held_output_tokens integer not null default 0 check(held_output_tokens >= 0),
    held_total_tokens integer not null default 0 check(held_total_tokens >= 0),
    held_nano_usd integer not null default 0 check(held_nano_usd >= 0),
    held_tool_calls integer not null default 0 check(held_tool_calls >= 0),
    held_milliseconds integer not null default 0 check(held_milliseconds >= 0),
    spent_rounds integer not null default 0 check(spent_rounds >= 0),
    spent_model_calls integer not null default 0 check(spent_model_calls >= 0),
    spent_input_tokens integer not null default 0 check(spent_input_tokens >= 0),
    spent_output_tokens integer not null default 0 check(spent_output_tokens >= 0),
    spent_total_tokens integer not null default 0 check(spent_total_tokens >= 0),
    spent_nano_usd integer not null default 0 check(spent_nano_usd >= 0),
    spent_tool_calls integer not null default 0 check(spent_tool_calls >= 0),
    spent_milliseconds integer not null default 0 check(spent_milliseconds >= 0)
) strict;
create unique index account_period on account(scope, name, period) where period is not null;
create unique index account_within on account(parent, name, coalesce(workspace, '')) where parent is not null;

-- A flow with its encoded spec. No owner: the run is parked, and whoever brings the next answer takes it.
create table run(
    n integer primary key,
    id text not null unique,
    flow text not null,
    version integer not null,
    spec text not null,
    principal text not null,
    via text not null,
    client text not null,
    key text,
    start_digest blob not null,                   -- finds the open run of an identical start
    workspace text not null,                      -- the real path of its one folder, '' without one
    place text,                                   -- the machines that have the folder; null: any with that path
    account integer not null references account,
    created_at integer not null,
    owner integer references owner,
    fence integer not null default 0,             -- rises with each new owner
    route text not null,
    paused text,                                  -- why
    resume_at integer,
    outcome text,                                 -- once it has ended
    ended_at integer,
    mandate text,                                 -- the id of the mandate whose run it is
    seq integer not null default 0,               -- rises with each commit of the run
    news_seq integer not null default 0,          -- `seq` at the newest change that matters to whoever waits for the run
    cached integer not null default 0,            -- tokens of its answers that came from a cache
    exactness text not null default ''            -- the kinds of token counts in its answers, each followed by a comma
);
create unique index run_key on run(principal, workspace, key) where key is not null;
create index run_start on run(start_digest);
create index run_open on run(owner) where outcome is null;
create index run_place on run(principal, workspace);
create index run_account on run(account);
create index run_resume on run(resume_at) where resume_at is not null;
create index run_mandate on run(principal, mandate, workspace) where mandate is not null;
create unique index run_mandate_open on run(principal, mandate, workspace) where mandate is not null and outcome is null;

-- What a flow asked: a completion, a tool call, a pause.
create table step(
    id integer primary key,
    run integer not null references run,
    path text not null,                           -- its place in the flow, as in round-2/call-1
    kind text not null,
    digest blob not null,                         -- of the request; a replay compares it
    call text,                                    -- {tool, arguments} of a call that no completion holds; null: any other
    fence integer not null,
    at integer not null,
    held text,                                    -- the amounts that it has reserved; null: it waits outside
    sent text,                                    -- how the request left: route, model, dialect, bounds
    shared text,                                  -- the day and the mandate that it is charged to
    judged text,                                  -- how a call was judged by what it takes along; null: it was not
    seq integer not null default 0                -- the run's, when it came or was last tried again or decided about
);
create unique index step_path on step(run, path);
create index step_run on step(run);
create index step_shared on step(shared) where shared is not null;
create index step_unpriced on step(run) where instr(sent, '"unpriced":true');
create index step_of_provider on step(run) where instr(sent, '"route":"provider"');

-- The steps that wait outside and have no answer, so that reading them costs the same in a run of any length.
create table waiting(
    run integer not null references run,
    step integer not null references step,
    primary key(run, step)
) without rowid;

-- The one answer of a step; the primary key makes a second one impossible.
create table answer(
    step integer primary key references step,
    at integer not null,
    body text not null,
    spent text not null,
    cached integer not null default 0,
    exactness text,
    by_route text not null,
    seq integer not null default 0                -- the run's, when it came
);

-- A further attempt at a step.
create table attempt(
    id integer primary key,
    run integer references run,
    step integer not null references step,
    fence integer not null,
    at integer not null,
    held text not null,
    sent text,
    shared text,
    ended text not null,                          -- how the attempt before it ended
    lost text not null,                           -- the amounts that the attempt before it stays charged with
    waits_outside integer not null                -- 1: it is answered outside this server
);
create index attempt_step on attempt(step);
create index attempt_run on attempt(run);
create index attempt_unpriced on attempt(run) where instr(sent, '"unpriced":true');
create index attempt_shared on attempt(shared) where shared is not null;

-- Control requests to a run's owner: pause, resume, extend, reroute, cancel, settle, verdict. A row of kind `grant` is
-- no request: it holds the further rounds that a loop was granted, with the answer of the call that asked for them.
create table inbox(
    id integer primary key,
    run integer not null references run,
    kind text not null,
    body text not null,
    principal text not null,
    via text not null,
    client text not null,
    at integer not null,
    taken integer                                 -- when the owner handled it
);
create index inbox_waiting on inbox(run) where taken is null;

-- A round trip in which a client was asked to answer what waits in a run.
create table client_question(
    nonce text primary key,                       -- in the state that the client sends back
    run integer not null references run,
    keys text not null,                           -- what was asked
    principal text not null,
    client text not null,
    at integer not null,
    consumed integer,                             -- when its answer was used
    state text                                    -- that state, where the client is asked through a task and carries none
);
create index client_question_run on client_question(run);

-- A completion of a step that a client's model was asked for.
create table client_completion(
    id integer primary key,
    run integer not null references run,
    step integer not null references step,
    session text not null,
    nonce text,                                   -- the client question that it is part of; null: it was pushed
    at integer not null,
    bound text not null,                          -- the most that it can cost
    ended text,                                   -- answered, refused, withdrawn; null: outstanding
    ended_at integer,
    charged integer                               -- the attempt charged with its bound once withdrawn; 0: the answer is
);
create index client_completion_run on client_completion(run);
create index client_completion_step on client_completion(step);
create index client_completion_charged on client_completion(run) where charged is not null;

-- The first request of a conversation whose cost a provider reported: it bounds later runs that begin alike.
create table prefix(
    step integer primary key references step,
    principal text not null,                      -- whose run it was
    digest blob not null,                         -- of the system text, the tools and the model
    tokens integer not null                       -- of input
);
create index prefix_newest on prefix(principal, step);

-- What a server is asking a client through a connection. It counts for nothing once that server is dead.
create table pushed_request(
    run integer not null references run,
    key text not null,                            -- of the item that waits
    owner integer not null,
    client text not null,
    at integer not null,
    primary key(run, key)
) without rowid;

-- A call that was answered with an MCP task.
create table task(
    id integer primary key,
    run integer not null references run,
    n integer not null,                           -- which task of its run
    client text not null,
    read text not null,                           -- what its caller has read: {answered, after, known}
    attached integer not null,                    -- 1: the call found the run, and did not start it
    skipped text not null,                        -- the keys that its client is asked about no more
    on_page text not null default '[]',           -- of these, the ones that its user went to decide on the page
    created_at integer not null,
    fetched_at integer,
    cancelled_at integer,
    ended_at integer,
    ending text,                                  -- completed, failed, cancelled; null: open
    result text
);
create unique index task_of_run on task(run, n);

-- What was cut, defaulted or done otherwise than asked.
create table note(
    run integer not null references run,
    text text not null,
    step integer not null default 0,              -- the newest step at that moment; 0: none
    unique(run, text)
);

-- Long texts, once each, by the hash of their content.
create table text(
    hash text primary key,
    body text not null
);

-- What a tool keeps about a run: a plan of edits; what a call is about to change, until it has its answer.
create table tool_intent(
    run integer not null references run,
    name text not null,
    body text not null,
    primary key(run, name)
) without rowid;

-- What a person is asked before a step begins, and the one verdict.
create table approval(
    step integer not null references step,
    n integer not null,
    run integer not null references run,
    key text not null,
    tool text not null,
    effect text not null,
    digest text not null,                         -- of what was shown
    preview text not null,
    private_preview text,                         -- shown to the person in its place: it depends on a private file
    base text not null,                           -- the hashes of the files that it rests on
    shape text,                                   -- what a rule about such calls would cover; null: each is asked about
    flow text,                                    -- what was found of what the call takes along; null: nothing
    asked_at integer not null,
    expires_at integer not null,
    unasked integer not null default 0,           -- 1: too many others wait, so it is not shown and its time does not run
    verdict text,
    by text,
    through text,
    client text,
    feedback text,
    files text,                                   -- of changes that are approved by file, those that are; null: all
    shown text,                                   -- how much of it the dialog showed in which it was decided
    decided_at integer,
    primary key(step, n),
    unique(run, key)
);
create index approval_waiting on approval(expires_at) where verdict is null;
create index approval_unasked on approval(run) where unasked;

-- An approval that a person made hold for further calls.
create table rule(
    id integer primary key,
    principal text not null,
    workspace text not null,
    folder text,                                  -- identifies the folder, so that another one in its place is not covered
    run integer references run,                   -- for that run alone
    tool text not null,
    pin text not null,                            -- of the tool's definition
    covered text not null,                        -- which calls
    approved_in text not null,                    -- the run and the key of the approval
    key text not null,
    at integer not null,
    by text not null,
    through text not null,
    client text not null,
    removed integer                               -- since when it no longer holds
);
create index rule_place on rule(principal, workspace, tool) where removed is null;
create index rule_run on rule(run) where run is not null;
create index rule_approval on rule(approved_in, key);

-- A file that a call wrote from texts of others: from `at` on, what it says is theirs.
create table foreign_file(
    workspace text not null,
    path text not null,
    run text not null,                            -- the id of the run, which may be gone
    step text not null,                           -- the path of the call
    at integer not null,
    trusted integer,                              -- since when a person trusts it again
    primary key(workspace, path, at)
) without rowid;

-- A tool's definition as another source gave it. The row without a name says that the source was seen.
create table definition(
    source text not null,
    name text not null,
    hash text not null,
    body text not null,
    state text not null,                          -- approved, pending, removed
    at integer not null,
    by text not null,
    primary key(source, name, hash)
);

-- A goal to work on in cycles. At most one run of it is open.
create table mandate(
    principal text not null,
    workspace text not null,                      -- '' for none
    place text,                                   -- as of a run
    id text not null,
    body text not null,
    digest text not null,
    goal_hash text not null,
    saved_at integer not null,
    last_due integer                              -- the time of its schedule for which it was last started
);
create unique index mandate_id on mandate(principal, id, workspace);

-- What happened that somebody may be told of, from which notifications, polls, streams and webhooks are made. Triggers write
-- these rows, in the transaction of what happened. What they say of it is read from the other tables, when it is told.
create table event(
    id integer primary key,
    kind text not null,                           -- run.waiting, run.ended, run.stopped, budget.near, mandate.due, mandate.ended
    principal text not null,
    workspace text not null,
    run text,                                     -- the id of the run, which may be gone; null: it is about none
    mandate text,
    what text,                                    -- what waits (approval, settle, pause), or the scope of the account
    key text,                                     -- of the item that waits, or the account's id
    at integer not null default (cast(unixepoch('subsec') * 1000 as integer)),
    tx integer not null default 0                 -- the transaction that wrote it; 0: transactions follow each other
);
create index event_place on event(tx, id);

-- The events that can be told: none that an unfinished transaction may still precede.
create view told_event as select * from event where tx < 1;

-- Whom events are sent to: a receiver of the settings, or a webhook that a client subscribed.
create table listener(
    id integer primary key,
    name text not null unique,
    principal text not null,
    body text not null,
    secret text,                                  -- JSON: with which it is signed, the newest first
    tx integer not null,                          -- the last event that was sent, or passed over
    event integer not null,
    state text not null default '{}',             -- what is held back, and when which run was notified of
    owner integer,                                -- the server that sends; null: none
    tries integer not null default 0,             -- that failed, one after another
    next_at integer not null default 0,           -- when to try again
    expires_at integer                            -- null: never
);

-- What was done by whom, where no other row tells it: with tokens, with rules that were removed.
create table audit(
    id integer primary key,
    at integer not null,
    what text not null,                           -- token, rule
    act text not null,                            -- add, rotate, revoke, remove
    about text not null,
    principal text not null,
    via text not null,
    client text not null,
    note text
);
create index audit_at on audit(at);

-- What waits outside.
create trigger step_waits after insert on step when new.held is null begin
    insert into waiting values (new.run, new.id);
end;
create trigger attempt_waits after insert on attempt when new.waits_outside begin
    insert into waiting select run, id from step where id = new.step
        and not exists (select 1 from answer where step = new.step) on conflict do nothing;
end;
create trigger attempt_begins after insert on attempt when not new.waits_outside begin
    delete from waiting where run = (select run from step where id = new.step) and step = new.step;
end;
create trigger attempt_of_run after insert on attempt begin
    update attempt set run = (select run from step where id = new.step) where id = new.id;
end;

-- Each write raises `run.seq`. News are a call of unknown outcome, a settlement, an approval asked or decided, a pause,
-- the end. That a step waits outside is known only once its commit is written, so the commit itself says that.
-- Whatever changes how a step is shown writes the new `run.seq` to it.
create trigger step_insert_seq after insert on step begin
    update run set seq = seq + 1 where n = new.run;
end;
create trigger attempt_insert_seq after insert on attempt begin
    update run set seq = seq + 1, news_seq = iif(new.ended = 'unknown' and new.waits_outside = 1, seq + 1, news_seq)
        where n = (select run from step where id = new.step);
    update step set seq = (select seq from run where n = step.run) where id = new.step;
end;
create trigger answer_insert_seq after insert on answer begin
    delete from waiting where run = (select run from step where id = new.step) and step = new.step;
    update run set seq = seq + 1, cached = cached + new.cached, exactness = exactness || case
            when new.exactness is null or instr(exactness, new.exactness || ',') then ''
            else new.exactness || ',' end
        where n = (select run from step where id = new.step);
end;
create trigger inbox_insert_seq after insert on inbox begin
    update run set seq = seq + 1, news_seq = iif(new.kind = 'settle', seq + 1, news_seq) where n = new.run;
end;
create trigger inbox_update_seq after update on inbox begin
    update run set seq = seq + 1 where n = new.run;
end;
create trigger client_completion_insert_seq after insert on client_completion begin
    update run set seq = seq + 1 where n = new.run;
end;
create trigger client_completion_update_seq after update on client_completion begin
    update run set seq = seq + 1 where n = new.run;
end;
create trigger note_insert_seq after insert on note begin
    update run set seq = seq + 1 where n = new.run;
end;
create trigger approval_insert_seq after insert on approval begin
    update run set seq = seq + 1, news_seq = iif(new.verdict is null and not new.unasked, seq + 1, news_seq)
        where n = new.run;
    update step set seq = (select seq from run where n = new.run) where id = new.step;
end;
create trigger approval_update_seq after update on approval begin
    update run set seq = seq + 1, news_seq = iif(new.verdict is not old.verdict or new.unasked is not old.unasked,
            seq + 1, news_seq)
        where n = new.run;
    update step set seq = (select seq from run where n = new.run) where id = new.step;
end;
create trigger run_update_seq after update of owner, fence, route, paused, resume_at, outcome on run begin
    update run set seq = seq + 1, news_seq = iif(new.paused is not old.paused and new.paused is not null
            or new.outcome is not old.outcome, seq + 1, news_seq)
        where n = new.n;
end;

-- What is written to `event`. Nothing is in a round that asks nobody.
create trigger approval_event after insert on approval when new.verdict is null and not new.unasked begin
    insert into event(kind, principal, workspace, run, mandate, what, key)
        select 'run.waiting', principal, workspace, id, mandate, 'approval', new.key from run where n = new.run;
end;
create trigger approval_asked_event after update of unasked on approval
        when old.unasked and not new.unasked and new.verdict is null begin
    insert into event(kind, principal, workspace, run, mandate, what, key)
        select 'run.waiting', principal, workspace, id, mandate, 'approval', new.key from run where n = new.run;
end;
create trigger attempt_event after insert on attempt when new.ended = 'unknown' and new.waits_outside = 1 begin
    insert into event(kind, principal, workspace, run, mandate, what, key)
        select 'run.waiting', principal, workspace, run.id, mandate, 'settle', path
            from step join run on run.n = step.run where step.id = new.step;
end;
create trigger pause_event after insert on step when new.kind = 'pause' and new.path not like '%limit%' begin
    insert into event(kind, principal, workspace, run, mandate, what, key)
        select 'run.waiting', principal, workspace, id, mandate, 'pause', new.path from run where n = new.run;
end;
create trigger paused_event after update of paused on run
        when new.paused is not null and old.paused is null and new.resume_at is null begin
    insert into event(kind, principal, workspace, run, mandate, what)
        values ('run.waiting', new.principal, new.workspace, new.id, new.mandate, 'pause');
end;
create trigger outcome_event after update of outcome on run when new.outcome is not null and old.outcome is null begin
    insert into event(kind, principal, workspace, run, mandate)
        values (case json_extract(new.outcome, '$.status') when 'stopped' then 'run.stopped' else 'run.ended' end,
            new.principal, new.workspace, new.id, new.mandate);
    insert into event(kind, principal, workspace, run, mandate)
        select 'mandate.ended', new.principal, new.workspace, new.id, new.mandate
            where json_extract(new.outcome, '$.output.mandate_status') = 'terminated';
end;
create trigger due_event after update of last_due on mandate
        when new.last_due is not null and new.last_due is not old.last_due begin
    insert into event(kind, principal, workspace, mandate)
        values ('mandate.due', new.principal, new.workspace, new.id);
end;
-- Most of a limit is used.
create trigger account_event after update on account when new.scope <> 'branch' and (new.spent_model_calls >= new.cap_model_calls - new.cap_model_calls / 10 and old.spent_model_calls < old.cap_model_calls - old.cap_model_calls / 10
        or new.spent_input_tokens >= new.cap_input_tokens - new.cap_input_tokens / 10 and old.spent_input_tokens < old.cap_input_tokens - old.cap_input_tokens / 10
        or new.spent_output_tokens >= new.cap_output_tokens - new.cap_output_tokens / 10 and old.spent_output_tokens < old.cap_output_tokens - old.cap_output_tokens / 10
        or new.spent_total_tokens >= new.cap_total_tokens - new.cap_total_tokens / 10 and old.spent_total_tokens < old.cap_total_tokens - old.cap_total_tokens / 10
        or new.spent_nano_usd >= new.cap_nano_usd - new.cap_nano_usd / 10 and old.spent_nano_usd < old.cap_nano_usd - old.cap_nano_usd / 10
        or new.spent_tool_calls >= new.cap_tool_calls - new.cap_tool_calls / 10 and old.spent_tool_calls < old.cap_tool_calls - old.cap_tool_calls / 10
        or new.spent_milliseconds >= new.cap_milliseconds - new.cap_milliseconds / 10 and old.spent_milliseconds < old.cap_milliseconds - old.cap_milliseconds / 10) begin
    insert into event(kind, principal, workspace, run, mandate, what, key)
        select 'budget.near', coalesce(run.principal, day.name, new.name),
            coalesce(run.workspace, new.workspace, ''), run.id,
            case new.scope when 'mandate' then new.name else run.mandate end, new.scope, cast(new.id as text)
        from (select new.id as id) as one left join run on run.account = one.id
            left join account as day on day.id = new.parent and new.scope = 'mandate'
        where coalesce(run.principal, day.name, new.name) is not null;
end;
