-- The index of a run's rollouts. It can be deleted at any time: everything in it comes from the run.
-- An attempt's id is (step << 28) + its number in the step's file, so that ids ascend as steps do.
CREATE TABLE files (
  step INTEGER PRIMARY KEY, size INTEGER NOT NULL,
  mtime_ns INTEGER NOT NULL, attempts INTEGER NOT NULL, unread INTEGER NOT NULL,
  cut INTEGER NOT NULL
);
-- A combination's name is its values as a JSON list, a set of operators' their names with commas.
CREATE TABLE combinations (
  id INTEGER PRIMARY KEY, name TEXT UNIQUE, attempts INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE operators (
  id INTEGER PRIMARY KEY, name TEXT UNIQUE, attempts INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE tasks (id INTEGER PRIMARY KEY, name TEXT UNIQUE, title TEXT);
CREATE TABLE attempts (
  id INTEGER PRIMARY KEY, grp INTEGER, idx INTEGER, task INTEGER, combination INTEGER,
  operators INTEGER, reward REAL, advantage REAL, tokens INTEGER, llm_tokens INTEGER,
  calls INTEGER, seconds REAL, program INTEGER, start INTEGER, size INTEGER
);
CREATE INDEX attempts_task ON attempts (task);
CREATE INDEX attempts_combination ON attempts (combination);
CREATE INDEX attempts_reward ON attempts (reward);
CREATE INDEX attempts_advantage ON attempts (advantage);
CREATE INDEX attempts_tokens ON attempts (tokens);
CREATE INDEX attempts_llm_tokens ON attempts (llm_tokens);
CREATE INDEX attempts_seconds ON attempts (seconds);
CREATE TABLE notes (id INTEGER PRIMARY KEY, note TEXT);
-- How many attempts of a step have each combination, and each set of operators.
CREATE TABLE counts (
  step INTEGER, combination INTEGER, attempts INTEGER, PRIMARY KEY (step, combination)
) WITHOUT ROWID;
CREATE TABLE uses (
  step INTEGER, operators INTEGER, attempts INTEGER, PRIMARY KEY (step, operators)
) WITHOUT ROWID;
-- And how many of the run: sums over ten thousand steps take a third of a second.
CREATE TRIGGER counted AFTER INSERT ON counts BEGIN
  UPDATE combinations SET attempts = attempts + NEW.attempts WHERE id = NEW.combination;
END;
CREATE TRIGGER used AFTER INSERT ON uses BEGIN
  UPDATE operators SET attempts = attempts + NEW.attempts WHERE id = NEW.operators;
END;
-- Words only: the texts themselves stay in the run.
CREATE VIRTUAL TABLE texts
USING fts5 (problem, workflow, prompts, replies, reasons, content='');
