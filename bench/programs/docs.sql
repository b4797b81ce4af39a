create table docs(id integer primary key, body blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000)
  insert into docs select i, zeroblob(8000) from n;
with recursive q(i) as (select 1 union all select i + 1 from q where i < 500)
  select sum(length(substr(body, 7000, 100))) from q join docs on id = 500 + i * 37 % 400;
