-- The index of a run's rollouts. It can be deleted at any time: everything in it comes from the run.
-- An attempt's id is (step << 28) + its number in the step's file, so that ids ascend as steps do.
CREATE TABLE IF NOT EXISTS files (
  step INTEGER PRIMARY KEY, size INTEGER NOT NULL,
  mtime_ns INTEGER NOT NULL, attempts INTEGER NOT NULL, unread INTEGER NOT NULL,
  cut INTEGER NOT NULL
);
-- What many attempts have in common, with their number.
CREATE TABLE IF NOT EXISTS combinations (
  id INTEGER PRIMARY KEY, attempts INTEGER NOT NULL DEFAULT 0,
  kind TEXT, source TEXT, outcome TEXT, failure TEXT, blame TEXT, judge TEXT, status TEXT,
  verdict TEXT, gold TEXT, repairs TEXT, baseline TEXT, stop TEXT,
  UNIQUE (kind, source, outcome, failure, blame, judge, status, verdict, gold, repairs, baseline,
    stop)
);
CREATE TABLE IF NOT EXISTS operators (
  id INTEGER PRIMARY KEY, attempts INTEGER NOT NULL DEFAULT 0, operators TEXT UNIQUE
);
CREATE TABLE IF NOT EXISTS tasks (id INTEGER PRIMARY KEY, task TEXT UNIQUE, title TEXT);
CREATE TABLE IF NOT EXISTS attempts (
  id INTEGER PRIMARY KEY, start INTEGER, size INTEGER, "group" INTEGER, "index" INTEGER,
  reward REAL, advantage REAL, turns INTEGER, tokens INTEGER, llm_tokens INTEGER, calls INTEGER,
  seconds REAL, program INTEGER, task_id INTEGER, combination_id INTEGER, operators_id INTEGER
);
CREATE INDEX IF NOT EXISTS attempts_task ON attempts (task_id);
CREATE INDEX IF NOT EXISTS attempts_combination ON attempts (combination_id);
CREATE INDEX IF NOT EXISTS attempts_reward ON attempts (reward);
CREATE INDEX IF NOT EXISTS attempts_advantage ON attempts (advantage);
CREATE INDEX IF NOT EXISTS attempts_tokens ON attempts (tokens);
CREATE INDEX IF NOT EXISTS attempts_llm_tokens ON attempts (llm_tokens);
CREATE INDEX IF NOT EXISTS attempts_seconds ON attempts (seconds);
CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, note TEXT);
-- How many attempts of a step have each combination, and each set of operators.
CREATE TABLE IF NOT EXISTS counts (
  step INTEGER, combination INTEGER, attempts INTEGER, PRIMARY KEY (step, combination)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uses (
  step INTEGER, operators INTEGER, attempts INTEGER, PRIMARY KEY (step, operators)
) WITHOUT ROWID;
-- And how many of the run: sums over ten thousand steps take a third of a second.
CREATE TRIGGER IF NOT EXISTS counted AFTER INSERT ON counts BEGIN
  UPDATE combinations SET attempts = attempts + NEW.attempts WHERE id = NEW.combination;
END;
CREATE TRIGGER IF NOT EXISTS used AFTER INSERT ON uses BEGIN
  UPDATE operators SET attempts = attempts + NEW.attempts WHERE id = NEW.operators;
END;
-- Words only: the texts themselves stay in the run.
CREATE VIRTUAL TABLE IF NOT EXISTS texts
USING fts5 (problem, workflow, prompts, replies, reasons, content='');
