-- An order book of 16 MB: filled, indexed, then asked mostly for a twentieth of its customers.
create table orders(id integer primary key, customer text, note blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
  insert into orders select i, printf('customer %05d', i * 7919 % 20000), zeroblob(500) from n;
create index by_customer on orders(customer);
with recursive q(i) as (select 1 union all select i + 1 from q where i < 20000)
  select sum(length(note)) from q join orders on customer = printf('customer %05d', case when i % 10 then i * 31 % 1000 else i * 31 % 20000 end);
